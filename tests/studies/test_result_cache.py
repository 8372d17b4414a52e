"""The result cache resumes, and other data, recipes or versions invalidate it."""

import pytest

from triptych.errors import UsageError
from triptych.recipe import Recipe
from triptych.studies.experiment import configure_objective
from triptych.studies.result_cache import ResultCache


class CountingCompute:
    """A computation that counts its calls."""

    def __init__(self) -> None:
        self.calls: list[Recipe] = []

    def __call__(self, recipe: Recipe) -> dict[str, float]:
        self.calls.append(recipe)
        return {"x": len(self.calls) / 3}


def test_the_cache_resumes(experiment, tmp_path):
    compute, recipe = CountingCompute(), experiment.make_recipe(configure_objective("infonce"))
    cache = ResultCache(tmp_path / "b.jsonl", {"data": "d"})
    first = [cache.load_or_compute(compute, recipe, i=i) for i in range(3)]
    text = (tmp_path / "b.jsonl").read_text()
    (tmp_path / "b.jsonl").write_text(text[:-8])  # killed while the third was written
    again = ResultCache(tmp_path / "b.jsonl", {"data": "d"})
    assert [again.load_or_compute(compute, recipe, i=i) for i in range(2)] == first[:2]
    assert len(compute.calls) == 3
    again.load_or_compute(compute, recipe, i=2)
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
        ResultCache(path, {}).load_or_compute(compute, recipe, objective="infonce")
    assert [call.objectives[0].settings["temperature"] for call in compute.calls] == [0.07, 0.2]
    monkeypatch.setattr("triptych.studies.result_cache.FORMAT_VERSION", 2)
    with pytest.raises(UsageError, match="another version of triptych"):
        ResultCache(path, {})
