import numpy as np
import pytest
import torch

from tests.studies.conftest import CAPTIONS, made_lab, made_table
from triptych.data.noise import Swap
from triptych.studies.lab import use


def test_draw_takes_a_vector_of_the_very_row(lab):
    table = lab.splits["train"]
    rows = torch.tensor([5, 2, 5])
    drawn = table.draw("text", rows, np.array([0, 7, 4]))
    expected = [table.vectors["text"][5 * CAPTIONS + 0], table.vectors["text"][2 * CAPTIONS + 1]]
    torch.testing.assert_close(drawn[:2], torch.stack(expected))
    torch.testing.assert_close(drawn[2], table.vectors["text"][5 * CAPTIONS + 1])


def test_swaps_exchange_content_and_leave_the_table_they_came_from():
    table = made_table(4, 0)
    after = table.swapped([Swap("0-0", "text", "0-3"), Swap("0-3", "text", "0-0")])
    assert after.places["text"][0].tolist() == table.places["text"][3].tolist()
    assert after.places["text"][3].tolist() == table.places["text"][0].tolist()
    assert after.places["text"][1].tolist() == table.places["text"][1].tolist()
    assert after.places["image"].tolist() == table.places["image"].tolist()
    assert table.places["text"][0].tolist() == [0, 1, 2]


def test_one_caption_a_row_keeps_picture_and_group():
    table = made_table(3, 0)
    wide = table.one_caption_a_row()
    assert len(wide) == 3 * CAPTIONS
    assert wide.group.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert wide.places["text"][:, 0].tolist() == list(range(9))
    assert wide.places["image"][:, 0].tolist() == wide.group.tolist()


def test_items_are_every_vector_with_its_group_once():
    table = made_table(3, 0)
    twice = table.swapped([Swap("0-1", "image", "0-0")])
    vectors, group = twice.items("image")
    assert sorted(zip(vectors[:, 0, 0].tolist(), group.tolist(), strict=True)) == sorted(
        zip(table.vectors["image"][[0, 0, 2], 0, 0].tolist(), [0, 1, 2], strict=True)
    )


def test_a_fit_learns_and_is_the_same_again(lab):
    recipe = lab.recipe(use("infonce"), batch=32, epochs=20)
    first, again = lab.fit(recipe), lab.fit(recipe)
    for a, b in zip(first.parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b)
    found = lab.measure(first)
    assert found.recall("text", "image", 1) > 60  # chance is 4
    untrained = lab.measure(lab.fit(lab.recipe(use("infonce"), batch=32, epochs=1, learning_rate=1e-12)))
    assert untrained.recall("text", "image", 1) < 30


def test_recall_is_that_of_a_plain_loop(lab):
    space = lab.fit(lab.recipe(use("infonce"), batch=32, epochs=2))
    (image, a), (text, b) = (lab.features(space, "test", m) for m in ("image", "text"))
    hits = 0
    for i in range(len(b)):
        scores = [float(text.embedding[i].double() @ image.embedding[j].double()) for j in range(len(a))]
        own = max(s for s, group in zip(scores, a.tolist(), strict=True) if group == int(b[i]))
        hits += sum(s >= own for s, group in zip(scores, a.tolist(), strict=True) if group != int(b[i])) < 10
    found = lab.measure(space)
    assert found.recall("text", "image", 10) == pytest.approx(100 * hits / len(b), abs=1e-6)
    assert np.mean(found.hits("text", "image")) == pytest.approx(hits / len(b))


def test_rows_without_a_side_of_a_pair_are_trained_on_what_they_have():
    lab = made_lab()
    table = lab.splits["train"]
    even = torch.arange(len(table)) % 2 == 0
    seen = []
    recipe = lab.recipe(use("infonce", ("image", "text"), ("image", "audio")), batch=16, epochs=1)
    lab.fit(recipe, table.only({"text": even, "audio": ~even}), each=lambda *a: seen.append(a[2]))
    assert {name.split(".")[0] for name in seen[0]} == {"infonce(image,text)", "infonce(image,audio)", "loss"}
