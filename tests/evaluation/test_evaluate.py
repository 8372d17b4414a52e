"""Evaluation of a space on rows: queries and items, unreadable files, cached features."""

import shutil
from dataclasses import replace

import pytest

from tests.training.train_python_data import make_python_rows
from triptych.checkpoint import load
from triptych.data import manifest
from triptych.errors import CheckpointError, ManifestError
from triptych.evaluation.comparison import compare
from triptych.evaluation.evaluate import evaluate
from triptych.evaluation.probe import probe_space
from triptych.evaluation.zero_shot import classify


@pytest.fixture(scope="module")
def space(run_dir):
    return load(run_dir)


@pytest.fixture
def rows(synthetic_manifest):
    return manifest.read(synthetic_manifest).rows[:20]


def by_direction(result):
    return {(d.query, d.gallery): d for d in result.directions}


def test_each_caption_is_a_query_and_each_file_an_item(space, rows):
    directions = by_direction(evaluate(space, rows, show_progress=False))
    assert len(directions) == 6
    captions = sum(len(row.texts) for row in rows)
    assert (directions["text", "image"].num_queries, directions["text", "image"].num_items) == (captions, 20)
    assert (directions["image", "text"].num_queries, directions["image", "text"].num_items) == (20, captions)


def test_a_file_of_several_rows_of_one_group_is_one_item(space, rows):
    split = [replace(row, id=f"{row.id}-{i}", texts=(text,)) for row in rows for i, text in enumerate(row.texts)]
    once, twice = (by_direction(evaluate(space, entries, show_progress=False)) for entries in (rows, split))
    assert once == twice


def test_a_space_may_be_given_by_its_path(space, rows, run_dir):
    from_path = evaluate(str(run_dir), rows, show_progress=False, num_resamples=0)
    assert by_direction(from_path) == by_direction(evaluate(space, rows, show_progress=False, num_resamples=0))
    with pytest.raises(CheckpointError, match="missing: no such run folder or space file"):
        evaluate("missing", rows)
    differences = compare(run_dir, space, rows, show_progress=False, num_resamples=10).to_pandas()["difference"]
    assert (differences == 0).all()


def test_queries_without_positives_are_excluded(space, rows):
    without_audio = [replace(row, audio=None) if i < 5 else row for i, row in enumerate(rows)]
    directions = by_direction(evaluate(space, without_audio, show_progress=False))
    assert (directions["image", "audio"].num_queries, directions["image", "audio"].num_items) == (15, 15)
    assert (directions["audio", "image"].num_queries, directions["audio", "image"].num_items) == (15, 20)


def test_an_unreadable_file_is_skipped(space, rows, synthetic_manifest, tmp_path):
    folder = tmp_path / "synthetic"
    shutil.copytree(synthetic_manifest.parent, folder)
    copied = list(manifest.read(folder / synthetic_manifest.name).rows[:20])
    assert copied[0].image
    copied[0].image.write_bytes(b"broken")
    result = evaluate(space, copied, show_progress=False)
    assert [source.content for source in result.failures] == [copied[0].image]
    rest = by_direction(evaluate(space, rows[1:], show_progress=False))
    assert by_direction(result)["image", "audio"].num_queries == 19
    assert by_direction(result)["audio", "image"].recall == rest["audio", "image"].recall


def test_rows_without_a_modality_pair_raise(space, rows):
    with pytest.raises(ManifestError, match="no two of image, audio, text occur together"):
        evaluate(space, [replace(row, audio=None, image=None) for row in rows], show_progress=False)


@pytest.mark.parametrize(
    "measure",
    [
        lambda space, rows, **more: evaluate(space, rows, show_progress=False, num_resamples=0, **more),
        lambda space, rows, **more: compare(space, space, rows, show_progress=False, num_resamples=10, **more),
        lambda space, rows, **more: classify(space, rows, modalities=["image"], show_progress=False, **more),
        lambda space, rows, **more: probe_space(space, rows, rows, modalities=["image"], show_progress=False, **more),
    ],
    ids=["evaluate", "compare", "classify", "probe"],
)
def test_frozen_features_are_read_from_the_cache(run_dir, rows, measure, tmp_path, monkeypatch):
    monkeypatch.setenv("TRIPTYCH_CACHE", str(tmp_path / "cache"))
    rows = [replace(row, label=f"class {i % 2}") for i, row in enumerate(rows)]
    space = load(run_dir)
    encoder = space.encoder("image")
    encoder.frozen = True
    batches = []
    encoder.register_forward_hook(lambda *_: batches.append(1))
    measure(space, rows)
    assert batches, "nothing was encoded the first time"
    batches.clear()
    measure(space, rows)
    assert not batches, "encoded again although the features are in the cache"
    measure(space, rows, cache="off")
    assert batches


def test_python_data_gives_the_results_of_the_manifest(space, synthetic_manifest, tmp_path):
    from_manifest = evaluate(space, synthetic_manifest, show_progress=False, cache=str(tmp_path))
    in_memory = make_python_rows(synthetic_manifest)
    from_memory = evaluate(space, (row for row in in_memory), show_progress=False, cache=str(tmp_path))
    assert from_memory.directions == from_manifest.directions
    everything = evaluate(space, in_memory, show_progress=False, cache=str(tmp_path), split="all", num_resamples=0)
    assert len(everything.items["image"]) == 80


def test_results_as_tables(space, rows):
    result = evaluate(space, rows, show_progress=False, num_resamples=100)
    table = result.to_arrow()
    assert table.num_rows == 6
    for row, direction, entry in zip(table.to_pylist(), result.directions, result.to_dict()["directions"], strict=True):
        assert (row["query"], row["gallery"]) == (direction.query, direction.gallery)
        assert row["R@5"] == direction.recall[5] == entry["metrics"]["R@5"]
        assert [row["R@5 low"], row["R@5 high"]] == entry["intervals"]["R@5"]
    pandas = pytest.importorskip("pandas", reason="needs pandas")
    pandas.testing.assert_frame_equal(result.to_pandas(), table.to_pandas())
    lines = repr(result).splitlines()
    assert len(lines) == 7
    first = result.directions[0]
    assert lines[1].split()[:4] == ["image", "→", "audio", f"{100 * first.recall[1]:.1f}"]
