"""Terminal output of `triptych compare`."""

from io import StringIO

import pytest
from rich.console import Console

from triptych.app import comparisons
from triptych.checkpoint import load
from triptych.data import manifest
from triptych.evaluation.comparison import compare_evaluations
from triptych.evaluation.evaluate import evaluate


@pytest.mark.slow
def test_every_direction_and_metric_is_printed_with_its_verdict(run_dir, synthetic_manifest, monkeypatch):
    output = StringIO()
    monkeypatch.setattr(comparisons, "stdout", Console(file=output, width=120))
    evaluation = evaluate(load(run_dir), manifest.read(synthetic_manifest).split("test").rows, num_resamples=0)
    results = compare_evaluations([evaluation], [evaluation])
    comparisons.print_comparisons(results)
    text = output.getvalue()
    for result in results:
        assert f"{result.query} → {result.gallery}" in text
    for metric in comparisons.METRICS:
        assert text.count(f" {metric} ") >= len(results)
    assert text.count("not separable") >= len(results) * len(comparisons.METRICS)
    assert "0 have a positive in the top 10 only with A, 0 only with B" in text
