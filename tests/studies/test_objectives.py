"""Settings and the reference are selected on the validation rows."""

from dataclasses import replace

import pytest

from triptych.studies import objectives
from triptych.studies.experiment import configure_objective
from triptych.studies.result_cache import ResultCache


@pytest.mark.slow
def test_settings_are_chosen_on_the_validation_rows(experiment, tmp_path, monkeypatch):
    """The test rows contradict the training and validation rows: on them the untrained space is better."""
    test = experiment.splits["test"]
    opposite = 8 - test.vectors["text"]  # the generated vectors have mean 4
    experiment.splits["test"] = replace(test, vectors=test.vectors | {"text": opposite})
    experiment.epochs = 6
    monkeypatch.setattr(objectives, "LEARNING_RATES", (1e-12, 3e-2))
    monkeypatch.setattr(objectives, "SEEDS", (0, 1))
    monkeypatch.setattr(objectives, "METHODS", {"infonce": objectives.METHODS["infonce"]})
    result = objectives.run(experiment, ResultCache(tmp_path / "o.jsonl", {}))
    ((record,),) = result.tables.values()
    assert str(record["settings"]).endswith("rate 0.03")
    untrained, trained = (
        experiment.evaluate(
            experiment.fit(experiment.make_recipe(configure_objective("infonce"), learning_rate=rate)), "test"
        ).score()
        for rate in (1e-12, 3e-2)
    )
    assert untrained > trained  # a search on the test rows would select the other rate


def test_objectives_are_compared_to_the_best_on_validation(experiment, tmp_path, monkeypatch):
    methods = {name: objectives.METHODS[name] for name in ("infonce", "sigmoid")}
    monkeypatch.setattr(objectives, "METHODS", methods)
    scores = {"infonce": {"valid": 60.0, "test": 0.2}, "sigmoid": {"valid": 50.0, "test": 0.4}}

    class StubCache(ResultCache):
        def load_or_compute(self, compute, recipe, **key):
            stub = scores[key["objective"]]
            if key["stage"] == "search":
                return {"valid": stub["valid"]}
            return {"score": 100 * stub["test"], "hit_rates": [stub["test"], stub["test"] + 0.1 + key["seed"] / 100]}

    result = objectives.run(experiment, StubCache(tmp_path / "o.jsonl", {}))
    assert result.conclusions[0].startswith("text → image R@10 of the reference **infonce**")
    assert result.conclusions[1].startswith("sigmoid: +20.0 points relative to the reference")
