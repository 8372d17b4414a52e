"""metrics.jsonl and TensorBoard events."""

import json
import shutil
import socket

import pytest

from triptych.checkpoint import load
from triptych.training.loop import train
from triptych.training.metrics_log import MetricsLog, count_steps, is_improving, read_metrics


def test_tensorboard_reads_the_metrics(tiny_recipe, tmp_path):
    reader = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="TensorBoard is not installed"
    )
    train(tiny_recipe, tmp_path / "run", show_progress=False)
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    (tmp_path / "run" / "metrics.jsonl").write_text(lines[0] + "\nnot json\n")
    train(tiny_recipe, tmp_path / "run", show_progress=False)  # resumes: the events are written anew
    files = list((tmp_path / "run" / "tensorboard").iterdir())
    assert len(files) == 1
    assert socket.gethostname() not in files[0].name or len(socket.gethostname()) < 3
    events = reader.EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    assert {"loss", "infonce(image,text).a_to_b"} <= set(events.Tags()["scalars"])
    (loss,) = events.Scalars("loss")
    assert loss.step == 1
    assert loss.value == pytest.approx(json.loads(lines[0])["loss"])


def test_training_works_without_tensorboard(tiny_recipe, run_dir, tmp_path, monkeypatch):
    monkeypatch.setattr("triptych.training.metrics_log.find_spec", lambda _: None)
    shutil.copytree(run_dir, tmp_path / "run")
    train(tiny_recipe, tmp_path / "run", restart=True, show_progress=False)
    assert not (tmp_path / "run" / "tensorboard").exists()
    assert load(tmp_path / "run").history["epochs"] == 2


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


def test_events_start_with_the_version_that_tensorboard_requires(tmp_path):
    loader = pytest.importorskip(
        "tensorboard.backend.event_processing.event_file_loader", reason="TensorBoard is not installed"
    )
    log = MetricsLog(tmp_path, 0)
    log.append({"epoch": 1, "loss": 2.0})
    log.append({"epoch": 2, "loss": 1.0})
    (path,) = (tmp_path / "tensorboard").iterdir()
    version, first, second = loader.RawEventFileLoader(str(path)).Load()
    assert b"brain.Event:2" in version
    events = list(loader.LegacyEventFileLoader(str(path)).Load())
    assert [event.step for event in events] == [0, 1, 2]
    assert events[0].wall_time == events[1].wall_time > 1e9
    assert len(first) > 0
    assert len(second) > 0
