import re

import pytest

from tests.studies.conftest import NAMES, made_lab, made_table
from triptych.errors import UsageError
from triptych.settings import Part
from triptych.studies import STUDIES, batch, negatives, noise, transitivity, views
from triptych.studies.book import NOTES, Book, Finding, write_page
from triptych.studies.lab import Lab


def ask(name: str, lab: Lab, folder) -> tuple[Finding, list[str]]:
    """Run a study and count the cells it asked for."""
    asked: list[str] = []

    class Counting(Book):
        def cell(self, work, **key):
            asked.append(str(key))
            return super().cell(work, **key)

    return STUDIES[name].run(lab, Counting(folder / f"{name}.jsonl", {})), asked


METRICS = {
    name: Part("mahalanobis", {"width": 16, "metric": name, "rank": 4})
    for name in ("identity", "diagonal", "low_rank", "full")
}
FEWER = {  # so that every study takes a second or two here
    "objectives": {"RATES": (1e-2,), "SEEDS": (0, 1)},
    "metric": {"EPSILONS": (0.05, 0.5), "SEEDS": (0,), "SHARES": (0.4,), "WIDTH": 16, "METRICS": METRICS},
    "noise": {"SHARES": (0.0, 0.4)},
    "batch": {"RIVALS": {"infonce": batch.RIVALS["infonce"]}, "SIZES": (32, 128)},
    "normalisation": {"EPOCHS": 4, "TEMPERATURES": (0.1, 1.0)},
    "transitivity": {"SHARES": (0.5, 1.0)},
    "views": {"SEEDS": (0,)},
}


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_runs_and_writes_its_page(name, tmp_path, monkeypatch):
    for constant, value in FEWER.get(name, {}).items():
        monkeypatch.setattr(STUDIES[name], constant, value)
    found, asked = ask(name, made_lab(views=9 if name == "views" else 1), tmp_path)
    assert len(asked) == len(set(asked)) == STUDIES[name].cells()
    page = write_page(tmp_path, name, STUDIES[name].QUESTION, STUDIES[name].HOW, f"triptych study {name}", found)
    text = page.read_text(encoding="utf-8")
    assert STUDIES[name].QUESTION in text
    assert (tmp_path / f"{name}.png").stat().st_size > 5000
    assert (tmp_path / f"{name}.csv").read_text(encoding="utf-8").count("\n") >= 2
    assert not re.search(r"\bnan\b", text)


def test_memory_of_a_step_grows_with_the_square_of_the_batch_unless_streamed():
    from multiprocessing import get_context

    with get_context("spawn").Pool(1) as pool:
        streamed, whole = (pool.apply(batch.step_memory, ("infonce", {"block": b}, 4096)) for b in (256, 0))
    assert whole > 4 * 4096 * 4096 / 2**20 > streamed


def test_alignment_without_negatives_collapses(lab, tmp_path):
    lab.epochs = 30
    book = Book(tmp_path / "n.jsonl", {})
    found = {name: negatives.look_at(lab, book, name) for name in ("none (alignment alone)", "contrastive, 64")}
    assert found["none (alignment alone)"]["strangers"][-1] > 0.9
    assert found["contrastive, 64"]["strangers"][-1] < 0.5


def test_text_and_sound_meet_through_pictures(lab, monkeypatch):
    monkeypatch.setattr(transitivity, "EPOCHS", 150)
    table = transitivity.bridged(lab.splits["train"], 0.5)
    assert not ((table.counts["text"] > 0) & (table.counts["audio"] > 0)).any()
    assert int((table.counts["image"] > 0).sum()) == len(table) // 2
    found = transitivity.measure(lab, transitivity.teacher(lab), "ranking", 1.0)
    assert found[transitivity.NEVER] > 80 > 2 * found["chance"] - 10


def test_transitivity_asks_for_all_three():
    lab = made_lab()
    two = Lab(lab.encoders, {m: n for m, n in NAMES.items() if m != "audio"}, lab.splits)
    with pytest.raises(UsageError, match="needs rows with image, audio and text"):
        transitivity.run(two, None)  # pyright: ignore[reportArgumentType]


def test_views_asks_for_films():
    with pytest.raises(UsageError, match="needs films"):
        views.run(made_lab(), None)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("kind", noise.KINDS)
def test_damage_moves_the_share_it_says_and_nobody_keeps_his_own(kind):
    table = made_table(200, 0)
    after = noise.damaged(table, kind, 0.4)
    moved = (after.places["text"] != table.places["text"]).all(dim=1)
    assert int(moved.sum()) == 80


def test_a_book_goes_on_where_it_was(tmp_path):
    calls = []

    def work() -> dict[str, float]:
        calls.append(1)
        return {"x": len(calls) / 3}

    book = Book(tmp_path / "b.jsonl", {"data": "d"})
    first = [book.cell(work, i=i) for i in range(3)]
    text = (tmp_path / "b.jsonl").read_text()
    (tmp_path / "b.jsonl").write_text(text[:-8])  # killed while the third was written down
    again = Book(tmp_path / "b.jsonl", {"data": "d"})
    assert [again.cell(work, i=i) for i in range(2)] == first[:2]
    assert len(calls) == 3
    again.cell(work, i=2)
    assert len(calls) == 4
    with pytest.raises(UsageError, match="other data or settings"):
        Book(tmp_path / "b.jsonl", {"data": "other"})


def test_what_a_person_wrote_stays_on_the_page(tmp_path):
    found = Finding({"T": [{"a": 1.0}]}, ["one"], lambda figure: None)
    page = write_page(tmp_path, "s", "Q?", "how", "triptych study s", found)
    page.write_text(page.read_text() + f"\n{NOTES}\n\nMine.\n")
    write_page(tmp_path, "s", "Q?", "how", "triptych study s", Finding({"T": [{"a": 2.0}]}, ["two"], lambda f: None))
    assert page.read_text().endswith(f"{NOTES}\n\nMine.\n")
    assert "| 2 |" in page.read_text()
    assert page.read_text().count(NOTES) == 1
