import re
from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

from tests.studies.conftest import NAMES, made_lab, made_table
from triptych.app.cli import app
from triptych.errors import UsageError
from triptych.recipe import Recipe
from triptych.settings import Part
from triptych.studies import STUDIES, batch, metric, negatives, noise, objectives, transitivity, views
from triptych.studies.book import NOTES, Book, Finding, write_page
from triptych.studies.lab import Lab, Table, use
from triptych.studies.study import FROZEN, Request, study

pytestmark = pytest.mark.slow


def ask(name: str, lab: Lab, folder) -> tuple[Finding, list[str]]:
    """Run a study and count the cells it asked for."""
    asked: list[str] = []

    class Counting(Book):
        def cell(self, work, recipe, **key):
            asked.append(str(key))
            return super().cell(work, recipe, **key)

    return STUDIES[name].run(lab, Counting(folder / f"{name}.jsonl", {})), asked


METRICS = {
    name: Part("mahalanobis", {"width": 16, "metric": kind, "rank": 4})
    for name, kind in ((metric.REFERENCE, "identity"), ("diagonal", "diagonal"), ("low rank 4", "low_rank"))
}
FEWER = {  # so that every study takes a second or two here
    "objectives": {"RATES": (1e-2,), "SEEDS": (0, 1)},
    "metric": {"EPSILONS": (0.05, 0.5), "SEEDS": (0, 1), "SHARES": (0.4,), "WIDTH": 16, "METRICS": METRICS},
    "noise": {"SHARES": (0.0, 0.4)},
    "batch": {"RIVALS": {"infonce": batch.RIVALS["infonce"]}, "SIZES": (32, 128)},
    "normalisation": {"EPOCHS": 4, "TEMPERATURES": (0.1, 1.0)},
    "transitivity": {"SHARES": (0.5, 1.0)},
    "views": {"SEEDS": (0,)},
}


@pytest.fixture
def no_peeking(monkeypatch):
    """A laboratory in which no recall is measured on the test rows before a fit is over: there nothing is chosen."""
    fitting: list[Recipe] = []
    fit, measure = Lab.fit, Lab.measure

    def watched_fit(self, recipe, *rest, **more):
        fitting.append(recipe)
        space = fit(self, recipe, *rest, **more)
        fitting.pop()
        return space

    def watched_measure(self, space, split="test", *rest):
        assert not (fitting and split == "test"), "the test rows were looked at during a fit"
        return measure(self, space, split, *rest)

    monkeypatch.setattr(Lab, "fit", watched_fit)
    monkeypatch.setattr(Lab, "measure", watched_measure)


@pytest.mark.parametrize("name", STUDIES)
@pytest.mark.usefixtures("no_peeking")
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
    assert whole > 4 * 4096 * 4096 / 2**20  # one matrix of scores
    assert streamed < whole / 4


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
    recipe = transitivity.bridging(lab, "ranking", 1.0)
    found = transitivity.measure(lab, transitivity.teacher(lab), 1.0, recipe)
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


class Work:
    """Numbers that tell how often they were computed."""

    def __init__(self) -> None:
        self.calls: list[Recipe] = []

    def __call__(self, recipe: Recipe) -> dict[str, float]:
        self.calls.append(recipe)
        return {"x": len(self.calls) / 3}


def test_a_book_goes_on_where_it_was(lab, tmp_path):
    work, recipe = Work(), lab.recipe(use("infonce"))
    book = Book(tmp_path / "b.jsonl", {"data": "d"})
    first = [book.cell(work, recipe, i=i) for i in range(3)]
    text = (tmp_path / "b.jsonl").read_text()
    (tmp_path / "b.jsonl").write_text(text[:-8])  # killed while the third was written down
    again = Book(tmp_path / "b.jsonl", {"data": "d"})
    assert [again.cell(work, recipe, i=i) for i in range(2)] == first[:2]
    assert len(work.calls) == 3
    again.cell(work, recipe, i=2)
    assert len(work.calls) == 4
    with pytest.raises(UsageError, match="other data or settings"):
        Book(tmp_path / "b.jsonl", {"data": "other"})


def test_a_book_computes_again_what_another_recipe_or_an_older_form_made(lab, tmp_path, monkeypatch):
    work, path = Work(), tmp_path / "b.jsonl"
    for recipe in (lab.recipe(use("infonce")), lab.recipe(use("infonce", temperature=0.2)), lab.recipe(use("infonce"))):
        Book(path, {}).cell(work, recipe, objective="infonce")
    assert [made.objectives[0].settings["temperature"] for made in work.calls] == [0.07, 0.2]
    monkeypatch.setattr("triptych.studies.book.FORM", 2)
    with pytest.raises(UsageError, match="another version of triptych"):
        Book(path, {})


def test_a_default_that_changes_makes_another_recipe(lab):
    whole = lab.recipe(use("matching"), space={"similarity": Part("mahalanobis", {"width": 256})}).text()
    for setting in ("epsilon", "mass", "metric", "rank"):
        assert f"\n{setting} = " in whole


def test_a_study_whose_rival_was_changed_computes_it_again(lab, tmp_path, monkeypatch):
    monkeypatch.setattr(noise, "SHARES", (0.0, 0.4))
    for temperature, cells in ((0.07, 3), (0.5, 6), (0.07, 6)):
        monkeypatch.setattr(noise, "RIVALS", {"infonce": ("infonce", {"temperature": temperature})})
        noise.run(lab, Book(tmp_path / "n.jsonl", {}))
        assert len((tmp_path / "n.jsonl").read_text().splitlines()) == 1 + cells


def test_settings_are_chosen_on_the_validation_rows(lab, tmp_path, monkeypatch):
    """Validation rows are like the training rows; test rows say the opposite: for them nothing is better learned."""
    test = lab.splits["test"]
    opposite = 8 - test.vectors["text"]  # the made vectors lie around 4
    lab.splits["test"] = replace(test, vectors=test.vectors | {"text": opposite})
    lab.epochs = 6
    monkeypatch.setattr(objectives, "RATES", (1e-12, 3e-2))
    monkeypatch.setattr(objectives, "SEEDS", (0, 1))
    monkeypatch.setattr(objectives, "RIVALS", {"infonce": objectives.RIVALS["infonce"]})
    found = objectives.run(lab, Book(tmp_path / "o.jsonl", {}))
    ((record,),) = found.tables.values()
    assert str(record["chosen"]).endswith("rate 0.03")
    frozen, learned = (
        lab.measure(lab.fit(lab.recipe(use("infonce"), learning_rate=rate)), "test").score() for rate in (1e-12, 3e-2)
    )
    assert frozen > learned  # so that a search on the test rows would have been seen


def test_objectives_are_held_against_the_one_that_validation_prefers(lab, tmp_path, monkeypatch):
    rivals = {name: objectives.RIVALS[name] for name in ("infonce", "sigmoid")}
    monkeypatch.setattr(objectives, "RIVALS", rivals)
    scores = {"infonce": {"valid": 60.0, "test": 0.2}, "sigmoid": {"valid": 50.0, "test": 0.4}}

    class Told(Book):
        def cell(self, work, recipe, **key):
            told = scores[key["objective"]]
            if key["stage"] == "search":
                return {"valid": told["valid"]}
            return {"score": 100 * told["test"], "hits": [told["test"], told["test"] + 0.1 + key["seed"] / 100]}

    found = objectives.run(lab, Told(tmp_path / "o.jsonl", {}))
    assert found.said[0].startswith("text → image R@10 of **infonce**")
    assert found.said[1].startswith("sigmoid: +20.0 points against it")


def pictures(places: list[list[int]], counts: list[int]) -> Table:
    """Rows whose pictures are the numbers 100, 1, 2, 3 …"""
    vectors = torch.arange(12.0)[:, None, None].expand(-1, 2, 3).clone()
    vectors[0] = 100
    rows = len(counts)
    return Table(
        [str(i) for i in range(rows)],
        {"image": vectors},
        {"image": torch.tensor(places)},
        {"image": torch.tensor(counts)},
        torch.arange(rows),
    )


@pytest.mark.parametrize(
    ("way", "expected"),
    [
        ("one frame", [[1], [4], [0], [6]]),
        ("one of eight, drawn", [[2, 3], [4], [0], [7]]),
        ("mean of eight", [[2.5], [4], [0], [7]]),
    ],
)
def test_a_row_is_seen_by_its_own_pictures_alone(way, expected):
    """A whole film, a picture alone, a row without, and a film of which one frame could not be read."""
    table = views.seen(pictures([[1, 2, 3], [4, 0, 0], [0, 0, 0], [6, 7, 0]], [3, 1, 0, 2]), way)
    found = [
        table.vectors["image"][places[:count], 0, 0].tolist() or [0]
        for places, count in zip(table.places["image"], table.counts["image"].tolist(), strict=True)
    ]
    assert found == expected


@pytest.mark.parametrize(
    ("encoders", "message"),
    [
        ({"image": "efficientnet_lite"}, r"frozen image encoder 'efficientnet_lite' is unknown; .*did you mean 'eff"),
        ({"image": "yamnet"}, "image encoder 'yamnet' is for audio; frozen ones for image: efficientnet_lite0"),
        ({"text": "text_transformer"}, "text encoder 'text_transformer' is not frozen; .*minilm"),
    ],
)
def test_an_encoder_that_will_not_do_is_named_and_leaves_no_trace(encoders, message, tmp_path):
    manifest = tmp_path / "pairs.csv"
    manifest.write_text("image,text,split\n")
    with pytest.raises(UsageError, match=message):
        study(Request("objectives", manifest, encoders=FROZEN | encoders), tmp_path / "studies", "")
    with pytest.raises(UsageError, match=message):
        Lab.open(manifest, FROZEN | encoders)
    assert not (tmp_path / "studies").exists()


def test_the_page_names_the_command_as_it_was_given(tmp_path, monkeypatch):
    given = []
    monkeypatch.setattr("triptych.studies.study.study", lambda *a: given.append(a) or tmp_path / "noise.md")
    data = str(tmp_path / "my pairs.csv")
    options = ["--rows", "20", "--encoder", "audio=soundnet", "--allow-outside", "-o", str(tmp_path / "mine")]
    for more in (options, [], ["--restart"]):
        assert CliRunner().invoke(app, ["study", "noise", "--data", data, *more]).exit_code == 0
    plain = "triptych study noise --data 'my pairs.csv'"
    full = f"{plain} --into mine --rows 20 --encoder audio=soundnet --allow-outside"
    assert [command for _, _, command, _ in given] == [full, plain, plain]


def test_what_a_person_wrote_stays_on_the_page(tmp_path):
    found = Finding({"T": [{"a": 1.0}]}, ["one"], lambda figure: None)
    page = write_page(tmp_path, "s", "Q?", "how", "triptych study s", found)
    page.write_text(page.read_text() + f"\n{NOTES}\n\nMine.\n")
    write_page(tmp_path, "s", "Q?", "how", "triptych study s", Finding({"T": [{"a": 2.0}]}, ["two"], lambda f: None))
    assert page.read_text().endswith(f"{NOTES}\n\nMine.\n")
    assert "| 2 |" in page.read_text()
    assert page.read_text().count(NOTES) == 1
