"""Evaluation of a space on rows: who is an item, who is a query, and what broken files do."""

import shutil
from dataclasses import replace

import pytest

from triptych.checkpoint import load
from triptych.data import manifest
from triptych.errors import ManifestError
from triptych.evaluation.comparison import compare
from triptych.evaluation.evaluate import evaluate
from triptych.evaluation.probe import probe_space
from triptych.evaluation.zero_shot import classify


@pytest.fixture(scope="module")
def space(run):
    return load(run)


@pytest.fixture
def rows(world):
    return manifest.read(world).rows[:20]


def by_direction(result):
    return {(d.query, d.gallery): d for d in result.directions}


def test_every_caption_is_a_query_and_every_file_an_item(space, rows):
    found = by_direction(evaluate(space, rows, show=False))
    assert len(found) == 6
    captions = sum(len(row.texts) for row in rows)
    assert (found["text", "image"].queries, found["text", "image"].items) == (captions, 20)
    assert (found["image", "text"].queries, found["image", "text"].items) == (20, captions)


def test_a_file_of_several_rows_of_one_group_is_one_item(space, rows):
    split = [replace(row, id=f"{row.id}-{i}", texts=(text,)) for row in rows for i, text in enumerate(row.texts)]
    once, twice = (by_direction(evaluate(space, some, show=False)) for some in (rows, split))
    assert once == twice


def test_a_query_without_an_answer_is_not_counted(space, rows):
    lonely = [replace(row, audio=None) if i < 5 else row for i, row in enumerate(rows)]
    found = by_direction(evaluate(space, lonely, show=False))
    assert (found["image", "audio"].queries, found["image", "audio"].items) == (15, 15)
    assert (found["audio", "image"].queries, found["audio", "image"].items) == (15, 20)


def test_a_broken_file_is_left_out_and_the_others_keep_their_answers(space, rows, world, tmp_path):
    folder = tmp_path / "world"
    shutil.copytree(world.parent, folder)
    copied = list(manifest.read(folder / world.name).rows[:20])
    assert copied[0].image
    copied[0].image.write_bytes(b"broken")
    result = evaluate(space, copied, show=False)
    assert [source.content for source in result.failures] == [copied[0].image]
    rest = by_direction(evaluate(space, rows[1:], show=False))
    assert by_direction(result)["image", "audio"].queries == 19
    assert by_direction(result)["audio", "image"].recall == rest["audio", "image"].recall


def test_nothing_to_measure_is_an_error(space, rows):
    with pytest.raises(ManifestError, match="no two of image, audio, text occur together"):
        evaluate(space, [replace(row, audio=None, image=None) for row in rows], show=False)


@pytest.mark.parametrize(
    "measure",
    [
        lambda space, rows, **more: evaluate(space, rows, show=False, draws=0, **more),
        lambda space, rows, **more: compare(space, space, rows, show=False, draws=10, **more),
        lambda space, rows, **more: classify(space, rows, modalities=["image"], show=False, **more),
        lambda space, rows, **more: probe_space(space, rows, rows, modalities=["image"], show=False, **more),
    ],
    ids=["evaluate", "compare", "classify", "probe"],
)
def test_what_a_frozen_encoder_made_of_a_file_is_read_from_the_cache(run, rows, measure, tmp_path, monkeypatch):
    monkeypatch.setenv("TRIPTYCH_CACHE", str(tmp_path / "cache"))
    rows = [replace(row, label=f"class {i % 2}") for i, row in enumerate(rows)]
    space = load(run)
    encoder = space.encoder("image")
    encoder.frozen = True
    batches = []
    encoder.register_forward_hook(lambda *_: batches.append(1))
    measure(space, rows)
    assert batches, "nothing was encoded at first"
    batches.clear()
    measure(space, rows)
    assert not batches, "encoded again although the features are in the cache"
    measure(space, rows, cache="off")
    assert batches
