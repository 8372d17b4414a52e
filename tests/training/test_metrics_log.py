"""metrics.jsonl."""

import json

from triptych.training.metrics_log import MetricsLog, count_steps, is_improving, read_metrics


def test_read_metrics_ignores_what_is_not_a_finite_number(tmp_path):
    assert read_metrics(tmp_path) == []
    lines = [
        '{"epoch": 1, "loss": 2.5, "steps": 3, "note": "a"}',
        "[1]",
        "not json",
        '{"epoch": 2, "loss": NaN, "steps": 4}',
    ]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
    assert read_metrics(tmp_path) == [{"epoch": 1, "loss": 2.5, "steps": 3}, {"epoch": 2, "steps": 4}]
    assert count_steps(tmp_path) == 7
    assert is_improving(tmp_path), "without validation scores"


def test_is_improving_while_the_last_validation_score_is_the_best(tmp_path):
    for scores, expected in (
        ((1.0, 2.0), True),
        ((2.0, 1.0), False),
        ((2.0, 1.0, 3.0), True),
        ((1.0, 3.0, 2.0), False),
    ):
        (tmp_path / "metrics.jsonl").write_text("".join(json.dumps({"valid": score}) + "\n" for score in scores))
        assert is_improving(tmp_path) == expected


def test_lines_of_epochs_that_were_not_saved_are_dropped(tmp_path):
    log = MetricsLog(tmp_path, 0)
    for epoch in (1, 2, 3):
        log.append({"epoch": epoch, "loss": 1 / epoch})
    MetricsLog(tmp_path, 2).append({"epoch": 3, "loss": 0.25})
    assert [(line["epoch"], line["loss"]) for line in read_metrics(tmp_path)] == [(1, 1.0), (2, 0.5), (3, 0.25)]
