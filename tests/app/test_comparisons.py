"""Terminal output of comparisons: metrics, changed queries, and the labels that differ most."""

from io import StringIO

import pytest
from rich.console import Console

from triptych.app import comparisons
from triptych.evaluation.comparison import Comparison, Flip, Slice
from triptych.evaluation.items import EvalItem
from triptych.evaluation.significance import Difference, Interval
from triptych.interfaces import Source

BETTER, EQUAL = Difference(0.2, 0.5, Interval(0.2, 0.4)), Difference(0.2, 0.2, Interval(-0.1, 0.1))


@pytest.fixture
def comparison():
    flip = Flip(EvalItem(Source("text", "a red bell"), "group", "row", None), 14.0, 3.0)
    labels = [Slice("label", f"label {i}", 10, EQUAL) for i in range(2 * comparisons.MAX_PROBLEMS)]
    slices = [Slice("words", "1–5", 40, EQUAL), *labels, Slice("label", "bell", 10, BETTER)]
    return Comparison("text", "image", 50, dict.fromkeys(comparisons.METRICS, BETTER), [], [flip], slices)


def print_to_string(monkeypatch, comparison, show_all):
    output = StringIO()
    monkeypatch.setattr(comparisons, "stdout", Console(file=output, width=200))
    comparisons.print_comparisons([comparison], show_all)
    return output.getvalue()


def test_the_table_has_every_metric_in_percent(monkeypatch, comparison):
    output = print_to_string(monkeypatch, comparison, show_all=False)
    for metric in comparisons.METRICS:
        row = next(line for line in output.splitlines() if f" {metric} " in line)
        assert row.split(metric)[1].split()[:3] == ["20.0", "50.0", "+30.0"]
    assert "50 queries: 0 have a positive in the top 10 only with A, 1 only with B" in output
    assert '+ rank 14 → 3  "a red bell"' in output


def test_significant_labels_come_first_and_the_rest_is_counted(monkeypatch, comparison):
    output = print_to_string(monkeypatch, comparison, show_all=False)
    labels = [line for line in output.splitlines() if line.strip().startswith(("bell", "label "))]
    assert labels[0].strip().startswith("bell")
    assert len(labels) == comparisons.MAX_PROBLEMS
    assert f"and {comparisons.MAX_PROBLEMS + 1} more labels" in output
    assert "more labels" not in print_to_string(monkeypatch, comparison, show_all=True)
