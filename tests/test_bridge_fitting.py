"""Fitting a bridge between two runs: the folder is searched and evaluated as a space; errors leave nothing behind."""

import pytest
import torch

import triptych
from triptych.bridge_fitting import MIN_TEXTS, bridge_space, clean_texts, measure_calibration, read_texts
from triptych.composite import join_spaces
from triptych.data import manifest
from triptych.data.loader import sources_of
from triptych.errors import ManifestError, UsageError
from triptych.interfaces import Source
from triptych.search.collection import Collection
from triptych.spaces.presence import BRIDGE_FILE

NUMBERS = ("no", "one", "two", "three", "four", "five", "six")
TEXTS = [
    f"{n} {c} {s}s {p}"
    for n in NUMBERS
    for c in ("red", "blue", "green", "yellow", "white")
    for s in ("bell", "square", "bird")
    for p in ("here", "there")
]


@pytest.fixture(scope="module")
def direct_sum(image_text_run, audio_text_run):
    return triptych.load(f"{image_text_run}+{audio_text_run}")


@pytest.fixture(scope="module")
def media(synthetic_manifest):
    rows = manifest.read(synthetic_manifest).rows[:24]
    return {m: [s for row in rows for s in sources_of(row, m)] for m in ("image", "audio")}


@pytest.fixture(scope="module")
def bridged(direct_sum, media, tmp_path_factory):
    folder = tmp_path_factory.mktemp("bridge") / "bridge"
    report = bridge_space(direct_sum, folder, TEXTS, media, show_progress=False)
    return folder, report


def scores(space, a, b):
    embedded = [space.embed(sources, sources[0].modality, with_parts=False).features for sources in (a, b)]
    return space.scores(*embedded)


def test_scores_of_random_pairs_are_standardised(bridged, direct_sum, media):
    folder, report = bridged
    assert (report["num_texts"], report["num_image"], report["num_audio"], report["calibrated"]) == (210, 24, 24, True)
    space, texts = triptych.load(folder), [Source("text", text) for text in TEXTS]
    for a, b in ((media["image"], texts), (media["audio"], texts), (media["image"], media["audio"])):
        random_pairs = scores(space, a, b)
        assert random_pairs.mean().item() == pytest.approx(0, abs=1e-3)
        assert random_pairs.std().item() == pytest.approx(1, abs=1e-3)
    own, standardised = (scores(s, media["image"], texts) for s in (direct_sum, space))
    assert torch.equal(own.argsort(dim=0), standardised.argsort(dim=0))


def test_without_media_the_scores_of_texts_are_unchanged(direct_sum, media, tmp_path):
    report = bridge_space(direct_sum, tmp_path / "bridge", TEXTS, show_progress=False)
    assert not report["calibrated"]
    space, texts = triptych.load(tmp_path / "bridge"), [Source("text", text) for text in TEXTS[:20]]
    for modality in ("image", "audio"):
        expected = scores(direct_sum, media[modality], texts)
        assert torch.allclose(scores(space, media[modality], texts), expected, atol=1e-6)
    assert scores(space, media["image"], media["audio"]).abs().max() > 1e-3


def test_no_calibrate_keeps_the_scores_of_texts(direct_sum, media, tmp_path):
    bridge_space(direct_sum, tmp_path, TEXTS, media, calibrate=False, show_progress=False)
    texts = [Source("text", text) for text in TEXTS[:20]]
    expected = scores(direct_sum, media["audio"], texts)
    assert torch.allclose(scores(triptych.load(tmp_path), media["audio"], texts), expected, atol=1e-6)


@pytest.mark.slow
def test_a_collection_and_an_evaluation_use_a_bridge(bridged, media, synthetic_manifest, tmp_path):
    folder, _ = bridged
    collection = Collection(tmp_path / "collection", folder)
    assert collection.add(synthetic_manifest, split="test", show_progress=False).added
    again = Collection(tmp_path / "collection")  # finds the bridge by its name
    for query in ("a red square", media["image"][0].path, media["audio"][0].path):
        for modality in ("image", "audio", "text"):
            hits = again.search(query, modality, k=3, fold_duplicates=False)
            assert [hit.source.modality for hit in hits] == [modality] * 3
    rows = manifest.read(synthetic_manifest).split("test").rows
    directions = triptych.evaluate(triptych.load(folder), rows).directions
    assert {(d.query, d.gallery) for d in directions} >= {("image", "audio"), ("audio", "image"), ("text", "image")}


def test_calibration_matches_numpy(media):
    from triptych.bridge import Bridge

    bridge = Bridge(torch.eye(4, 3), torch.eye(3, 4), torch.zeros(4), torch.zeros(3))
    texts, items = ([torch.randn(n, d, generator=torch.Generator().manual_seed(n)) for d in (4, 3)] for n in (30, 9))
    result = measure_calibration(bridge, texts, items)
    for i, pairs in enumerate((texts[0] @ items[0].T, texts[1] @ items[1].T, bridge.scores(*items))):
        values = pairs.double().numpy().ravel()
        assert result["score_mean"][i].item() == pytest.approx(values.mean(), abs=1e-6)
        assert result["score_std"][i].item() == pytest.approx(values.std(ddof=1), rel=1e-5)


def test_texts_are_read_from_lines_and_manifests(tmp_path, synthetic_manifest):
    (tmp_path / "texts.txt").write_text("a dog\n\na  dog\nrain é\n", encoding="utf-8")
    assert read_texts(tmp_path / "texts.txt") == ["a dog", "", "a  dog", "rain é"]
    rows = manifest.read(synthetic_manifest).split("train").rows
    assert read_texts(synthetic_manifest) == [text for row in rows for text in row.texts]
    assert clean_texts([*TEXTS, "", " \n", TEXTS[0], f" {TEXTS[1]} "]) == TEXTS


def test_texts_that_cannot_be_used_are_reported(tmp_path):
    (tmp_path / "empty.txt").touch()
    (tmp_path / "latin.txt").write_bytes("é".encode("latin-1"))
    with pytest.raises(UsageError, match=f"0 different texts; a bridge needs at least {MIN_TEXTS}"):
        clean_texts(read_texts(tmp_path / "empty.txt"))
    for name in ("latin.txt", "missing.txt"):
        with pytest.raises(UsageError, match=rf"{name}: cannot be read as UTF-8 text"):
            read_texts(tmp_path / name)
    with pytest.raises(ManifestError):
        read_texts(tmp_path / "missing.csv")


def test_errors_leave_nothing_behind(direct_sum, media, run_dir, image_text_run, audio_text_run, tmp_path):
    folder = tmp_path / "bridge"
    single = triptych.load(image_text_run)
    both = triptych.load(f"{run_dir}+{audio_text_run}")
    no_audio = triptych.load(f"{image_text_run}+{image_text_run}")
    cases = [
        (direct_sum, TEXTS[:100], media, "100 different texts"),
        (direct_sum, [], media, "0 different texts"),
        (direct_sum, TEXTS, {"image": media["image"][:3]}, "3 readable items of image"),
        (single, TEXTS, None, "is not a composite space"),
        (join_spaces((single, triptych.load(audio_text_run))), TEXTS, None, "not loaded as a direct sum"),
        (both, TEXTS, None, "a member embeds images and audio"),
        (no_audio, TEXTS, None, "no member embeds audio"),
    ]
    for space, texts, some_media, message in cases:
        with pytest.raises(UsageError, match=message):
            bridge_space(space, folder, texts, some_media, show_progress=False)
        assert not folder.exists()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").touch()
    for path, message in (("other", "contains other files"), ("other/notes.txt", "is a file")):
        with pytest.raises(UsageError, match=message):
            bridge_space(direct_sum, tmp_path / path, TEXTS, show_progress=False)
    assert not (tmp_path / "other" / BRIDGE_FILE).exists()
