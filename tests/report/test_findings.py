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

from tests.conftest import QUICK
from triptych.contracts import Source
from triptych.data import manifest
from triptych.recipe import Recipe
from triptych.report import findings
from triptych.report.inline import RATE, Inliner, picture, sound
from triptych.report.layouts import along_axes, chosen, squares
from triptych.report.plots import guessed_shares
from triptych.training.loop import train

pytestmark = pytest.mark.slow


def test_good_examples_are_found_at_once_and_bad_ones_are_the_worst(found):
    for d, (good, bad) in zip(found.evaluation.directions, found.examples, strict=True):
        assert all(one.rank == 1 and one.answers[0].right and one.missed is None for one in good)
        assert bad[0].rank == d.each.rank.max()
        for one in bad:
            assert not any(answer.right for answer in one.answers)
            assert one.missed
            assert (one.missed.right, one.missed.rank) == (True, one.rank)
            assert one.missed.item.group == one.query.group
            scores = [answer.score for answer in (*one.answers, one.missed)]
            assert scores == sorted(scores, reverse=True)


def test_examples_are_of_different_groups(found):
    for good, bad in found.examples:
        for some in (good, bad):
            assert len({one.query.group for one in some}) == len(some)


def test_squares_are_softmax_and_plan_of_the_same_items(found):
    items, space = found.evaluation.items, found.space
    for square in squares(space, items, {frozenset(("image", "text")): 0.5}, side=6):
        places = chosen(items, 6)
        a, b = (items[m].take(places[m]) for m in (square.a, square.b))
        scores = space.scores(a, square.a, b, square.b).tolist()
        for i, row in enumerate(scores):
            own = [math.exp(s / square.temperature) for s in row]
            assert square.softmax[i] == pytest.approx([x / sum(own) for x in own], rel=1e-4)
        assert square.plan.sum(0) == pytest.approx(np.ones(6), abs=1e-5)
        assert square.plan.sum(1) == pytest.approx(np.ones(6), abs=1e-5)
        if {square.a, square.b} == {"image", "text"}:
            assert square.temperature == 0.5


def test_a_learned_metric_and_transport_are_drawn_as_trained(world, tmp_path):
    changes = [
        *QUICK,
        f"data.manifest={world}",
        "space.similarity.name=mahalanobis",
        "space.similarity.width=32",
        "space.similarity.metric=full",
        "space.geometry=free",
        "training.epochs=1",
    ]
    recipe = Recipe.load("trimodal", changes)
    uses = tuple(replace(use, name="matching", settings={"epsilon": 0.05}) for use in recipe.objectives)
    train(replace(recipe, objectives=uses), tmp_path / "run", show=False)
    found = findings.gather(tmp_path / "run", manifest.read(world), show=False)
    assert [square.temperature for square in found.squares] == [0.05] * 3
    assert {s.modality: s.length for s in found.geometry.shapes}["text"] != pytest.approx(1)


def test_the_same_groups_are_chosen_in_every_modality(found):
    items = found.evaluation.items
    groups = {m: items[m].group[places].tolist() for m, places in chosen(items, 9).items()}
    assert len(groups["image"]) == 9
    assert groups["image"] == groups["audio"] == groups["text"]


def test_the_flat_view_keeps_as_much_as_two_axes_can(found):
    view = along_axes(found.evaluation.items)
    rows = []
    for modality, places in chosen(found.evaluation.items, 150).items():
        x = found.evaluation.items[modality].features.embedding[places].double().numpy()
        rows.append(x / np.linalg.norm(x, axis=1, keepdims=True))
    x = np.concatenate(rows)
    values = np.linalg.eigvalsh(np.cov(x.T, bias=True))
    assert view.places.var(axis=0) == pytest.approx(values[::-1][:2])


@pytest.mark.parametrize(("items", "right"), [(20, [1, 1, 1]), (12, [1, 3, 5])])
def test_guessed_ranks_are_those_of_random_orders(items, right):
    bins = [(1, 1), (2, 5), (6, 10), (11, items)]
    rng = np.random.default_rng(0)
    best = [1 + min(rng.permutation(items)[:r]) for r in right for _ in range(3000)]
    shares = [np.mean([low <= rank <= high for rank in best]) for low, high in bins]
    assert guessed_shares(items, np.array(right), bins) == pytest.approx(shares, abs=0.03)
    assert sum(guessed_shares(items, np.array(right), bins)) == pytest.approx(1)


def data_of(address, kind):
    head, _, data = address.partition(",")
    assert head == f"data:{kind};base64"
    return base64.b64decode(data)


def test_pictures_become_small_and_stay_what_they_are(tmp_path):
    wide = np.zeros((400, 800, 3), np.uint8)
    wide[:, :400] = 200, 30, 30
    Image.fromarray(wide).save(tmp_path / "wide.png")
    address = picture(Source("image", tmp_path / "wide.png"))
    small = Image.open(io.BytesIO(data_of(address, f"image/{'png' if 'png' in address[:20] else 'jpeg'}"))).convert(
        "RGB"
    )
    assert small.size == (192, 96)
    assert np.allclose(np.asarray(small)[48, 40], (200, 30, 30), atol=12)
    assert np.allclose(np.asarray(small)[48, 150], 0, atol=12)


def test_sounds_are_the_moment_that_is_meant_and_not_too_long(tmp_path):
    rate = 16_000
    time = np.arange(10 * rate) / rate
    soundfile.write(tmp_path / "s.wav", 0.5 * np.sin(2 * np.pi * np.where(time < 3, 300, 900) * time), rate)
    for start, end, seconds, hertz in ((None, None, 6, 300), (4.0, 5.5, 1.5, 900)):
        data = data_of(sound(Source("audio", tmp_path / "s.wav", start, end)), "audio/mpeg")
        samples, found_rate = soundfile.read(io.BytesIO(data))
        assert found_rate == RATE
        assert len(samples) / RATE == pytest.approx(seconds, abs=0.1)
        spectrum = np.abs(np.fft.rfft(samples[: int(1.2 * RATE)]))
        assert np.argmax(spectrum) / 1.2 == pytest.approx(hertz, rel=0.02)
        assert len(data) < 20_000 * seconds


def test_a_full_page_and_a_broken_file_leave_names_alone(tmp_path):
    Image.new("RGB", (8, 8), "red").save(tmp_path / "a.png")
    (tmp_path / "b.png").write_bytes(b"broken")
    inline = Inliner(budget=400)
    source = Source("image", tmp_path / "a.png")
    size = len(inline.address(source) or "")
    assert 0 < size < 400
    assert inline.left == 400 - size
    while inline.address(source):
        pass
    assert inline.left >= 0
    assert Inliner().address(Source("image", tmp_path / "b.png")) is None


def test_history_is_read_line_by_line_whatever_stands_there(tmp_path):
    (tmp_path / "metrics.jsonl").write_text(
        '{"epoch": 1, "loss": 2.5, "infonce(image,text).temperature": 0.1}\nnot json\n[1]\n{"epoch": 2, "loss": NaN}\n'
    )
    history = findings.read_history(tmp_path)
    assert history == [{"epoch": 1, "loss": 2.5, "infonce(image,text).temperature": 0.1}, {"epoch": 2}]
    assert findings.temperatures(history[:1]) == {frozenset(("image", "text")): 0.1}


def test_the_numbers_are_json(found):
    text = json.dumps(findings.plain(found), allow_nan=False)
    again = json.loads(text)
    assert len(again["directions"]) == 6
    assert len(again["geometry"]["shapes"]) == 3
    assert len(again["history"]) == 2
