import re
from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

from tests.studies.conftest import NAMES, make_experiment, make_table
from triptych.app.cli import app
from triptych.errors import UsageError
from triptych.recipe import Recipe
from triptych.settings import Component
from triptych.studies import STUDIES, batch, metric, negatives, noise, objectives, transitivity, views
from triptych.studies.experiment import Experiment, FeatureTable, configure_objective
from triptych.studies.result_cache import NOTES_HEADING, ResultCache, StudyResult, write_page
from triptych.studies.study import DEFAULT_ENCODERS, StudyRequest, run_study

pytestmark = pytest.mark.slow


def run_counted(name: str, experiment: Experiment, folder) -> tuple[StudyResult, list[str]]:
    """Run a study and count the cells it asked for."""
    keys: list[str] = []

    class CountingCache(ResultCache):
        def cached_run(self, compute, recipe, **key):
            keys.append(str(key))
            return super().cached_run(compute, recipe, **key)

    return STUDIES[name].run(experiment, CountingCache(folder / f"{name}.jsonl", {})), keys


METRICS = {
    name: Component("mahalanobis", {"embed_dim": 16, "metric": kind, "rank": 4})
    for name, kind in ((metric.REFERENCE, "identity"), ("diagonal", "diagonal"), ("low rank 4", "low_rank"))
}
SMALL_SETTINGS = {  # so that every study takes a second or two here
    "objectives": {"LEARNING_RATES": (1e-2,), "SEEDS": (0, 1)},
    "metric": {"EPSILONS": (0.05, 0.5), "SEEDS": (0, 1), "NOISE_RATES": (0.4,), "EMBED_DIM": 16, "METRICS": METRICS},
    "noise": {"NOISE_RATES": (0.0, 0.4)},
    "batch": {"METHODS": {"infonce": batch.METHODS["infonce"]}, "BATCH_SIZES": (32, 128)},
    "normalisation": {"EPOCHS": 4, "TEMPERATURES": (0.1, 1.0)},
    "transitivity": {"FRACTIONS": (0.5, 1.0)},
    "views": {"SEEDS": (0,)},
}


@pytest.fixture
def forbid_test_evaluation(monkeypatch):
    """A laboratory in which no recall is measured on the test rows before a fit is over: there nothing is chosen."""
    fitting: list[Recipe] = []
    fit, evaluate = Experiment.fit, Experiment.evaluate

    def tracked_fit(self, recipe, *rest, **more):
        fitting.append(recipe)
        space = fit(self, recipe, *rest, **more)
        fitting.pop()
        return space

    def checked_evaluate(self, space, split="test", *rest):
        assert not (fitting and split == "test"), "the test rows were looked at during a fit"
        return evaluate(self, space, split, *rest)

    monkeypatch.setattr(Experiment, "fit", tracked_fit)
    monkeypatch.setattr(Experiment, "evaluate", checked_evaluate)


@pytest.mark.parametrize("name", STUDIES)
@pytest.mark.usefixtures("forbid_test_evaluation")
def test_every_study_runs_and_writes_its_page(name, tmp_path, monkeypatch):
    for constant, value in SMALL_SETTINGS.get(name, {}).items():
        monkeypatch.setattr(STUDIES[name], constant, value)
    result, keys = run_counted(name, make_experiment(views=9 if name == "views" else 1), tmp_path)
    assert len(keys) == len(set(keys)) == STUDIES[name].count_runs()
    page = write_page(tmp_path, name, STUDIES[name].QUESTION, STUDIES[name].SETUP, f"triptych study {name}", result)
    text = page.read_text(encoding="utf-8")
    assert STUDIES[name].QUESTION in text
    assert (tmp_path / f"{name}.png").stat().st_size > 5000
    assert (tmp_path / f"{name}.csv").read_text(encoding="utf-8").count("\n") >= 2
    assert not re.search(r"\bnan\b", text)


def test_step_memory_is_quadratic_in_the_batch_unless_streamed():
    from multiprocessing import get_context

    with get_context("spawn").Pool(1) as pool:
        streamed, whole = (
            pool.apply(batch.measure_step_memory, ("infonce", {"stream_block": b}, 4096)) for b in (256, 0)
        )
    assert whole > 4 * 4096 * 4096 / 2**20  # one matrix of scores
    assert streamed < whole / 4


def test_alignment_without_negatives_collapses(experiment, tmp_path):
    experiment.epochs = 30
    cache = ResultCache(tmp_path / "n.jsonl", {})
    results = {
        name: negatives.run_method(experiment, cache, name) for name in ("none (alignment alone)", "contrastive, 64")
    }
    assert results["none (alignment alone)"]["mismatched"][-1] > 0.9
    assert results["contrastive, 64"]["mismatched"][-1] < 0.5


def test_text_and_audio_align_through_images(experiment, monkeypatch):
    monkeypatch.setattr(transitivity, "EPOCHS", 150)
    table = transitivity.make_disjoint_pairs(experiment.splits["train"], 0.5)
    assert not ((table.vector_counts["text"] > 0) & (table.vector_counts["audio"] > 0)).any()
    assert int((table.vector_counts["image"] > 0).sum()) == len(table) // 2
    recipe = transitivity.make_bridge_recipe(experiment, "ranking", 1.0)
    recalls = transitivity.measure(experiment, transitivity.compute_teacher_targets(experiment), 1.0, recipe)
    assert recalls[transitivity.UNTRAINED_KEY] > 80 > 2 * recalls["chance"] - 10


def test_transitivity_needs_three_modalities():
    experiment = make_experiment()
    bimodal = Experiment(experiment.encoders, {m: n for m, n in NAMES.items() if m != "audio"}, experiment.splits)
    with pytest.raises(UsageError, match="needs rows with image, audio and text"):
        transitivity.run(bimodal, None)  # pyright: ignore[reportArgumentType]


def test_views_needs_videos():
    with pytest.raises(UsageError, match="needs films"):
        views.run(make_experiment(), None)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("noise_kind", noise.NOISE_KINDS)
def test_inject_noise_swaps_exactly_the_given_fraction(noise_kind):
    table = make_table(200, 0)
    noisy = noise.inject_noise(table, noise_kind, 0.4)
    moved = (noisy.vector_indices["text"] != table.vector_indices["text"]).all(dim=1)
    assert int(moved.sum()) == 80


class CountingCompute:
    """Numbers that tell how often they were computed."""

    def __init__(self) -> None:
        self.calls: list[Recipe] = []

    def __call__(self, recipe: Recipe) -> dict[str, float]:
        self.calls.append(recipe)
        return {"x": len(self.calls) / 3}


def test_the_cache_resumes(experiment, tmp_path):
    compute, recipe = CountingCompute(), experiment.make_recipe(configure_objective("infonce"))
    cache = ResultCache(tmp_path / "b.jsonl", {"data": "d"})
    first = [cache.cached_run(compute, recipe, i=i) for i in range(3)]
    text = (tmp_path / "b.jsonl").read_text()
    (tmp_path / "b.jsonl").write_text(text[:-8])  # killed while the third was written down
    again = ResultCache(tmp_path / "b.jsonl", {"data": "d"})
    assert [again.cached_run(compute, recipe, i=i) for i in range(2)] == first[:2]
    assert len(compute.calls) == 3
    again.cached_run(compute, recipe, i=2)
    assert len(compute.calls) == 4
    with pytest.raises(UsageError, match="other data or settings"):
        ResultCache(tmp_path / "b.jsonl", {"data": "other"})


def test_another_recipe_or_format_version_invalidates_the_cache(experiment, tmp_path, monkeypatch):
    compute, path = CountingCompute(), tmp_path / "b.jsonl"
    for recipe in (
        experiment.make_recipe(configure_objective("infonce")),
        experiment.make_recipe(configure_objective("infonce", temperature=0.2)),
        experiment.make_recipe(configure_objective("infonce")),
    ):
        ResultCache(path, {}).cached_run(compute, recipe, objective="infonce")
    assert [call.objectives[0].settings["temperature"] for call in compute.calls] == [0.07, 0.2]
    monkeypatch.setattr("triptych.studies.result_cache.FORMAT_VERSION", 2)
    with pytest.raises(UsageError, match="another version of triptych"):
        ResultCache(path, {})


def test_recipes_write_out_default_settings(experiment):
    text = experiment.make_recipe(
        configure_objective("matching"), space={"similarity": Component("mahalanobis", {"embed_dim": 256})}
    ).to_toml()
    for setting in ("epsilon", "mass", "metric", "rank"):
        assert f"\n{setting} = " in text


def test_a_changed_method_is_computed_again(experiment, tmp_path, monkeypatch):
    monkeypatch.setattr(noise, "NOISE_RATES", (0.0, 0.4))
    for temperature, runs in ((0.07, 3), (0.5, 6), (0.07, 6)):
        monkeypatch.setattr(noise, "METHODS", {"infonce": ("infonce", {"temperature": temperature})})
        noise.run(experiment, ResultCache(tmp_path / "n.jsonl", {}))
        assert len((tmp_path / "n.jsonl").read_text().splitlines()) == 1 + runs


def test_settings_are_chosen_on_the_validation_rows(experiment, tmp_path, monkeypatch):
    """Validation rows are like the training rows; test rows say the opposite: for them nothing is better learned."""
    test = experiment.splits["test"]
    opposite = 8 - test.vectors["text"]  # the made vectors lie around 4
    experiment.splits["test"] = replace(test, vectors=test.vectors | {"text": opposite})
    experiment.epochs = 6
    monkeypatch.setattr(objectives, "LEARNING_RATES", (1e-12, 3e-2))
    monkeypatch.setattr(objectives, "SEEDS", (0, 1))
    monkeypatch.setattr(objectives, "METHODS", {"infonce": objectives.METHODS["infonce"]})
    result = objectives.run(experiment, ResultCache(tmp_path / "o.jsonl", {}))
    ((record,),) = result.tables.values()
    assert str(record["chosen"]).endswith("rate 0.03")
    untrained, trained = (
        experiment.evaluate(
            experiment.fit(experiment.make_recipe(configure_objective("infonce"), learning_rate=rate)), "test"
        ).score()
        for rate in (1e-12, 3e-2)
    )
    assert untrained > trained  # so that a search on the test rows would have been seen


def test_objectives_are_compared_to_the_best_on_validation(experiment, tmp_path, monkeypatch):
    methods = {name: objectives.METHODS[name] for name in ("infonce", "sigmoid")}
    monkeypatch.setattr(objectives, "METHODS", methods)
    scores = {"infonce": {"valid": 60.0, "test": 0.2}, "sigmoid": {"valid": 50.0, "test": 0.4}}

    class StubCache(ResultCache):
        def cached_run(self, compute, recipe, **key):
            stub = scores[key["objective"]]
            if key["stage"] == "search":
                return {"valid": stub["valid"]}
            return {"score": 100 * stub["test"], "hit_rates": [stub["test"], stub["test"] + 0.1 + key["seed"] / 100]}

    result = objectives.run(experiment, StubCache(tmp_path / "o.jsonl", {}))
    assert result.conclusions[0].startswith("text → image R@10 of **infonce**")
    assert result.conclusions[1].startswith("sigmoid: +20.0 points against it")


def make_image_table(vector_indices: list[list[int]], vector_counts: list[int]) -> FeatureTable:
    """Rows whose pictures are the numbers 100, 1, 2, 3 …"""
    vectors = torch.arange(12.0)[:, None, None].expand(-1, 2, 3).clone()
    vectors[0] = 100
    rows = len(vector_counts)
    return FeatureTable(
        [str(i) for i in range(rows)],
        {"image": vectors},
        {"image": torch.tensor(vector_indices)},
        {"image": torch.tensor(vector_counts)},
        torch.arange(rows),
    )


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        ("one frame", [[1], [4], [0], [6]]),
        ("one of eight, drawn", [[2, 3], [4], [0], [7]]),
        ("mean of eight", [[2.5], [4], [0], [7]]),
    ],
)
def test_select_views_uses_only_the_images_of_the_row(view, expected):
    """A whole film, a picture alone, a row without, and a film of which one frame could not be read."""
    table = views.select_views(make_image_table([[1, 2, 3], [4, 0, 0], [0, 0, 0], [6, 7, 0]], [3, 1, 0, 2]), view)
    images = [
        table.vectors["image"][indices[:count], 0, 0].tolist() or [0]
        for indices, count in zip(table.vector_indices["image"], table.vector_counts["image"].tolist(), strict=True)
    ]
    assert images == expected


@pytest.mark.parametrize(
    ("encoders", "message"),
    [
        ({"image": "efficientnet_lite"}, r"frozen image encoder 'efficientnet_lite' is unknown; .*did you mean 'eff"),
        ({"image": "yamnet"}, "image encoder 'yamnet' is for audio; frozen ones for image: efficientnet_lite0"),
        ({"text": "text_transformer"}, "text encoder 'text_transformer' is not frozen; .*minilm"),
    ],
)
def test_an_unusable_encoder_raises_and_writes_nothing(encoders, message, tmp_path):
    manifest = tmp_path / "pairs.csv"
    manifest.write_text("image,text,split\n")
    with pytest.raises(UsageError, match=message):
        run_study(StudyRequest("objectives", manifest, encoders=DEFAULT_ENCODERS | encoders), tmp_path / "studies", "")
    with pytest.raises(UsageError, match=message):
        Experiment.from_manifest(manifest, DEFAULT_ENCODERS | encoders)
    assert not (tmp_path / "studies").exists()


def test_the_page_shows_the_command(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr("triptych.studies.study.run_study", lambda *a: calls.append(a) or tmp_path / "noise.md")
    data = str(tmp_path / "my pairs.csv")
    options = ["--rows", "20", "--encoder", "audio=soundnet", "--allow-outside", "-o", str(tmp_path / "mine")]
    for more in (options, [], ["--restart"]):
        assert CliRunner().invoke(app, ["study", "noise", "--data", data, *more]).exit_code == 0
    plain = "triptych study noise --data 'my pairs.csv'"
    full = f"{plain} --output mine --rows 20 --encoder audio=soundnet --allow-outside"
    assert [command for _, _, command, _ in calls] == [full, plain, plain]


def test_notes_on_the_page_are_kept(tmp_path):
    result = StudyResult({"T": [{"a": 1.0}]}, ["one"], lambda figure: None)
    page = write_page(tmp_path, "s", "Q?", "how", "triptych study s", result)
    page.write_text(page.read_text() + f"\n{NOTES_HEADING}\n\nMine.\n")
    write_page(
        tmp_path, "s", "Q?", "how", "triptych study s", StudyResult({"T": [{"a": 2.0}]}, ["two"], lambda f: None)
    )
    assert page.read_text().endswith(f"{NOTES_HEADING}\n\nMine.\n")
    assert "| 2 |" in page.read_text()
    assert page.read_text().count(NOTES_HEADING) == 1
