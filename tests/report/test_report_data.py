"""What a report shows is what the space says: examples, squares, views on paper, pictures and sounds made small."""

import base64
import io
import json
import math
from dataclasses import replace

import numpy as np
import pytest
import soundfile
from PIL import Image

from tests.conftest import TINY_OVERRIDES
from triptych.data import manifest
from triptych.interfaces import Source
from triptych.recipe import Recipe
from triptych.report import report_data
from triptych.report.inline import SAMPLE_RATE, MediaInliner, encode_audio, encode_image
from triptych.report.plots import compute_chance_fractions
from triptych.report.projections import compute_match_matrices, project_pca, select_shared_groups
from triptych.training.loop import train

pytestmark = pytest.mark.slow


def test_good_examples_rank_first_and_bad_examples_are_the_worst(report):
    for d, (good, bad) in zip(report.evaluation.directions, report.examples, strict=True):
        assert all(one.rank == 1 and one.answers[0].right and one.missed_positive is None for one in good)
        assert bad[0].rank == d.each.rank.max()
        for one in bad:
            assert not any(answer.right for answer in one.answers)
            assert one.missed_positive
            assert (one.missed_positive.right, one.missed_positive.rank) == (True, one.rank)
            assert one.missed_positive.item.group == one.query.group
            scores = [answer.score for answer in (*one.answers, one.missed_positive)]
            assert scores == sorted(scores, reverse=True)


def test_examples_are_of_different_groups(report):
    for good, bad in report.examples:
        for some in (good, bad):
            assert len({one.query.group for one in some}) == len(some)


def test_match_matrices_are_softmax_and_plan_of_the_same_items(report):
    items, space = report.evaluation.items, report.space
    for matrices in compute_match_matrices(space, items, {frozenset(("image", "text")): 0.5}, size=6):
        indices = select_shared_groups(items, 6)
        a, b = (items[m].take(indices[m]) for m in (matrices.a, matrices.b))
        scores = space.scores(a, b).tolist()
        for i, row in enumerate(scores):
            weights = [math.exp(s / matrices.temperature) for s in row]
            assert matrices.softmax[i] == pytest.approx([x / sum(weights) for x in weights], rel=1e-4)
        assert matrices.plan.sum(0) == pytest.approx(np.ones(6), abs=1e-5)
        assert matrices.plan.sum(1) == pytest.approx(np.ones(6), abs=1e-5)
        if {matrices.a, matrices.b} == {"image", "text"}:
            assert matrices.temperature == 0.5


def test_match_matrices_use_the_trained_epsilon(synthetic_manifest, tmp_path):
    overrides = [
        *TINY_OVERRIDES,
        f"data.manifest={synthetic_manifest}",
        "space.similarity.name=mahalanobis",
        "space.similarity.embed_dim=32",
        "space.similarity.metric=full",
        "space.geometry=free",
        "training.epochs=1",
    ]
    recipe = Recipe.load("trimodal", overrides)
    objectives = tuple(replace(use, name="matching", settings={"epsilon": 0.05}) for use in recipe.objectives)
    train(replace(recipe, objectives=objectives), tmp_path / "run", show_progress=False)
    report = report_data.collect_report_data(tmp_path / "run", manifest.read(synthetic_manifest), show_progress=False)
    assert [square.temperature for square in report.match_matrices] == [0.05] * 3
    assert {s.modality: s.mean_norm for s in report.geometry.modalities}["text"] != pytest.approx(1)


def test_the_same_groups_are_selected_in_every_modality(report):
    items = report.evaluation.items
    groups = {m: items[m].group[places].tolist() for m, places in select_shared_groups(items, 9).items()}
    assert len(groups["image"]) == 9
    assert groups["image"] == groups["audio"] == groups["text"]


def test_pca_projection_has_the_largest_variances(report):
    projection = project_pca(report.evaluation.items)
    rows = []
    for modality, places in select_shared_groups(report.evaluation.items, 150).items():
        x = report.evaluation.items[modality].features.embedding[places].double().numpy()
        rows.append(x / np.linalg.norm(x, axis=1, keepdims=True))
    x = np.concatenate(rows)
    values = np.linalg.eigvalsh(np.cov(x.T, bias=True))
    assert projection.coordinates.var(axis=0) == pytest.approx(values[::-1][:2])


@pytest.mark.parametrize(("num_items", "num_positives"), [(20, [1, 1, 1]), (12, [1, 3, 5])])
def test_chance_fractions_match_random_orders(num_items, num_positives):
    bins = [(1, 1), (2, 5), (6, 10), (11, num_items)]
    rng = np.random.default_rng(0)
    best = [1 + min(rng.permutation(num_items)[:r]) for r in num_positives for _ in range(3000)]
    fractions = [np.mean([low <= rank <= high for rank in best]) for low, high in bins]
    assert compute_chance_fractions(num_items, np.array(num_positives), bins) == pytest.approx(fractions, abs=0.03)
    assert sum(compute_chance_fractions(num_items, np.array(num_positives), bins)) == pytest.approx(1)


def decode_data_uri(data_uri, media_type):
    head, _, data = data_uri.partition(",")
    assert head == f"data:{media_type};base64"
    return base64.b64decode(data)


def test_images_are_downscaled(tmp_path):
    wide = np.zeros((400, 800, 3), np.uint8)
    wide[:, :400] = 200, 30, 30
    Image.fromarray(wide).save(tmp_path / "wide.png")
    data_uri = encode_image(Source("image", tmp_path / "wide.png"))
    small = Image.open(
        io.BytesIO(decode_data_uri(data_uri, f"image/{'png' if 'png' in data_uri[:20] else 'jpeg'}"))
    ).convert("RGB")
    assert small.size == (192, 96)
    assert np.allclose(np.asarray(small)[48, 40], (200, 30, 30), atol=12)
    assert np.allclose(np.asarray(small)[48, 150], 0, atol=12)


def test_audio_is_cut_to_the_segment_and_shortened(tmp_path):
    rate = 16_000
    time = np.arange(10 * rate) / rate
    soundfile.write(tmp_path / "s.wav", 0.5 * np.sin(2 * np.pi * np.where(time < 3, 300, 900) * time), rate)
    for start, end, seconds, hertz in ((None, None, 6, 300), (4.0, 5.5, 1.5, 900)):
        data = decode_data_uri(encode_audio(Source("audio", tmp_path / "s.wav", start, end)), "audio/mpeg")
        samples, decoded_rate = soundfile.read(io.BytesIO(data))
        assert decoded_rate == SAMPLE_RATE
        assert len(samples) / SAMPLE_RATE == pytest.approx(seconds, abs=0.1)
        spectrum = np.abs(np.fft.rfft(samples[: int(1.2 * SAMPLE_RATE)]))
        assert np.argmax(spectrum) / 1.2 == pytest.approx(hertz, rel=0.02)
        assert len(data) < 20_000 * seconds


def test_files_beyond_the_limit_or_unreadable_have_no_data_uri(tmp_path):
    Image.new("RGB", (8, 8), "red").save(tmp_path / "a.png")
    (tmp_path / "b.png").write_bytes(b"broken")
    inliner = MediaInliner(max_bytes=400)
    source = Source("image", tmp_path / "a.png")
    size = len(inliner.data_uri(source) or "")
    assert 0 < size < 400
    assert inliner.remaining_bytes == 400 - size
    while inliner.data_uri(source):
        pass
    assert inliner.remaining_bytes >= 0
    assert MediaInliner().data_uri(Source("image", tmp_path / "b.png")) is None


def test_history_skips_invalid_lines(tmp_path):
    (tmp_path / "metrics.jsonl").write_text(
        '{"epoch": 1, "loss": 2.5, "infonce(image,text).temperature": 0.1}\nnot json\n[1]\n{"epoch": 2, "loss": NaN}\n'
    )
    history = report_data.read_history(tmp_path)
    assert history == [{"epoch": 1, "loss": 2.5, "infonce(image,text).temperature": 0.1}, {"epoch": 2}]
    assert report_data.last_temperatures(history[:1]) == {frozenset(("image", "text")): 0.1}


def test_report_to_dict_is_json(report):
    text = json.dumps(report_data.report_to_dict(report), allow_nan=False)
    again = json.loads(text)
    assert len(again["directions"]) == 6
    assert len(again["geometry"]["modalities"]) == 3
    assert len(again["history"]) == 2
