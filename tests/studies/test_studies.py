"""Every study runs, selects nothing on the test rows and writes its page."""

import re
from importlib import import_module

import pytest

from tests.studies.conftest import make_experiment
from triptych.recipe import Recipe
from triptych.settings import Component
from triptych.studies import STUDIES, batch, metric
from triptych.studies.experiment import Experiment
from triptych.studies.page import StudyResult, write_page
from triptych.studies.result_cache import ResultCache

pytestmark = pytest.mark.slow


def run_counted(name: str, experiment: Experiment, folder) -> tuple[StudyResult, list[str]]:
    """Run a study and return the keys of its runs."""
    keys: list[str] = []

    class CountingCache(ResultCache):
        def load_or_compute(self, compute, recipe, **key):
            keys.append(str(key))
            return super().load_or_compute(compute, recipe, **key)

    return STUDIES[name].run(experiment, CountingCache(folder / f"{name}.jsonl", {})), keys


METRICS = {
    name: Component("mahalanobis", {"embed_dim": 16, "metric": form, "rank": 4})
    for name, form in ((metric.REFERENCE, "identity"), ("diagonal", "diagonal"), ("low rank 4", "low_rank"))
}


SMALL_SETTINGS = {  # every study takes a second or two
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
    """Fail when a study evaluates the test rows during a fit: nothing may be selected on them."""
    fitting: list[Recipe] = []
    fit, evaluate = Experiment.fit, Experiment.evaluate

    def tracked_fit(self, recipe, *rest, **more):
        fitting.append(recipe)
        space = fit(self, recipe, *rest, **more)
        fitting.pop()
        return space

    def checked_evaluate(self, space, split="test", *rest):
        assert not (fitting and split == "test"), "the test rows were evaluated during a fit"
        return evaluate(self, space, split, *rest)

    monkeypatch.setattr(Experiment, "fit", tracked_fit)
    monkeypatch.setattr(Experiment, "evaluate", checked_evaluate)


@pytest.mark.parametrize("name", STUDIES)
@pytest.mark.usefixtures("forbid_test_evaluation")
def test_every_study_runs_and_writes_its_page(name, tmp_path, monkeypatch):
    for constant, value in SMALL_SETTINGS.get(name, {}).items():
        monkeypatch.setattr(import_module(f"triptych.studies.{name}"), constant, value)
    result, keys = run_counted(name, make_experiment(views=9 if name == "views" else 1), tmp_path)
    assert len(keys) == len(set(keys)) == STUDIES[name].count_runs()
    page = write_page(tmp_path, name, STUDIES[name], f"triptych study {name}", result)
    text = page.read_text(encoding="utf-8")
    assert STUDIES[name].question in text
    assert (tmp_path / f"{name}.png").stat().st_size > 5000
    assert (tmp_path / f"{name}.csv").read_text(encoding="utf-8").count("\n") >= 2
    assert not re.search(r"\bnan\b", text)
