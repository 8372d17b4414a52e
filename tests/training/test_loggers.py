"""Loggers write what metrics.jsonl has, each read back from its own files; none of them needs a network."""

import json
import sqlite3
import struct
import sys

import pytest

from tests.training.cases import with_training
from tests.training.test_callbacks import Broken
from triptych.errors import TrainingError, UsageError
from triptych.training import loggers
from triptych.training.loggers import MLflow, TensorBoard, Trackio, WandB, flatten_recipe, resolve_callbacks
from triptych.training.loop import train
from triptych.training.metrics_log import read_metrics


def require(module, extra):
    return pytest.importorskip(module, reason=f"{extra} is not installed (triptych[{extra}])")


def train_interrupted(recipe, folder, logger, second_logger=None):
    """Train two epochs. The run fails in the second epoch, and is resumed."""
    with pytest.raises(TrainingError, match=r"Broken\.on_step"):
        train(recipe, folder, callbacks=[logger, Broken("on_step", 5)], show_progress=False)
    train(recipe, folder, callbacks=[second_logger or logger], show_progress=False)
    return read_metrics(folder)


def read_events(folder):
    reader = require("tensorboard.backend.event_processing.event_accumulator", "tensorboard")
    events = reader.EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return events


def test_tensorboard_reads_the_metrics(tiny_recipe, tmp_path):
    require("tensorboard", "tensorboard")
    lines = train_interrupted(tiny_recipe, tmp_path / "run", TensorBoard())
    (file,) = (tmp_path / "run" / "tensorboard").iterdir()
    assert file.name == "events.out.tfevents.0.triptych", "the name has no host name"
    events = read_events(tmp_path / "run")
    assert {"loss", "infonce(image,text).a_to_b"} <= set(events.Tags()["scalars"])
    assert [e.step for e in events.Scalars("loss")] == [1, 2]
    assert [e.value for e in events.Scalars("loss")] == pytest.approx([line["loss"] for line in lines])
    assert events.Scalars("loss")[0].wall_time == pytest.approx(lines[0]["time"])


def test_tensorboard_shows_also_the_epochs_before_it_was_chosen(tiny_recipe, tmp_path):
    require("tensorboard", "tensorboard")
    train(tiny_recipe, tmp_path / "run", show_progress=False)
    assert not (tmp_path / "run" / "tensorboard").exists(), "nothing is logged by default"
    train(tiny_recipe, tmp_path / "run", callbacks=["tensorboard"], show_progress=False)
    assert len(read_events(tmp_path / "run").Scalars("loss")) == 2
    train(with_training(tiny_recipe, epochs=1), tmp_path / "run", restart=True, show_progress=False)
    assert not (tmp_path / "run" / "tensorboard").exists(), "the events of the replaced run are removed"


def test_events_start_with_the_version_that_tensorboard_requires(tiny_recipe, tmp_path):
    loader = require("tensorboard.backend.event_processing.event_file_loader", "tensorboard")
    train(tiny_recipe, tmp_path / "run", callbacks=[TensorBoard()], show_progress=False)
    (path,) = (tmp_path / "run" / "tensorboard").iterdir()
    version, *_ = loader.RawEventFileLoader(str(path)).Load()
    assert b"brain.Event:2" in version
    assert [event.step for event in loader.LegacyEventFileLoader(str(path)).Load()] == [0, 1, 2]


def iter_log_records(content):
    """Yield the records of a W&B file: a header of 7 bytes, then LevelDB's log format in blocks of 32 KiB."""
    assert content[:4] == b":W&B"
    position, parts = 7, b""
    while position + 7 <= len(content):
        left = 32_768 - position % 32_768
        if left < 7:
            position += left
            continue
        _, length, part = struct.unpack_from("<IHB", content, position)  # checksum, length, part of a record
        parts += content[position + 7 : position + 7 + length]
        position += 7 + length
        if part in (1, 4):  # a whole record, or the last part of a record
            yield parts
            parts = b""


@pytest.mark.slow
def test_wandb_in_offline_mode(tiny_recipe, tmp_path):
    require("wandb", "wandb")
    messages = require("wandb.proto.wandb_internal_pb2", "wandb")
    # W&B names its folders by the second, so each session has a folder of its own.
    sessions = [tmp_path / "session-1", tmp_path / "session-2"]
    for session in sessions:
        session.mkdir()
    wandb_loggers = [
        WandB("tests", log_every=2, mode="offline", dir=str(session), settings={"console": "off"})
        for session in sessions
    ]
    lines = train_interrupted(tiny_recipe, tmp_path / "run", *wandb_loggers)
    history, ids, exit_codes, config = {}, set(), [], {}
    for path in sorted(tmp_path.glob("session-*/wandb/offline-run-*/*.wandb")):
        for content in iter_log_records(path.read_bytes()):
            record = messages.Record.FromString(content)
            if record.HasField("run"):
                ids.add(record.run.run_id)
                config |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
            if record.HasField("exit"):
                exit_codes.append(record.exit.exit_code)
            if record.HasField("history"):
                values = {i.key or i.nested_key[-1]: json.loads(i.value_json) for i in record.history.item}
                history.setdefault(record.history.step.num, {}).update(values)
    assert ids == {json.loads((tmp_path / "run" / "loggers.json").read_text())["wandb"]}, "one W&B run, resumed"
    assert exit_codes == [1, 0], "failed, then finished"
    assert config["training.epochs"] == 2
    epochs = [values for _, values in sorted(history.items()) if "loss" in values]
    assert [values["loss"] for values in epochs] == pytest.approx([line["loss"] for line in lines])
    assert [values["epoch"] for values in epochs] == [1, 2]
    assert [step for step, values in sorted(history.items()) if "step/loss" in values] == [2, 4, 6]


@pytest.mark.slow
def test_mlflow_in_a_local_folder(tiny_recipe, tmp_path, monkeypatch):
    mlflow = require("mlflow", "mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # mlflow-skinny has no database
    uri = (tmp_path / "mlruns").as_uri()
    lines = train_interrupted(tiny_recipe, tmp_path / "run", MLflow("tests", log_every=2, tracking_uri=uri))
    client = mlflow.MlflowClient(uri)
    (run,) = client.search_runs([client.get_experiment_by_name("tests").experiment_id])
    assert (run.info.status, run.info.run_name) == ("FINISHED", "run")
    assert run.info.run_id == json.loads((tmp_path / "run" / "loggers.json").read_text())["mlflow"]
    assert run.data.params["training.epochs"] == "2"
    for name, mlflow_name in {"loss": "loss", "infonce(image,text).a_to_b": "infonce-image-text.a_to_b"}.items():
        logged = client.get_metric_history(run.info.run_id, mlflow_name)
        assert [metric.value for metric in logged] == pytest.approx([line[name] for line in lines])
    steps = [metric.step for metric in client.get_metric_history(run.info.run_id, "step/loss")]
    assert sorted(set(steps)) == [2, 4, 6]
    assert mlflow.active_run() is None


@pytest.mark.slow
def test_trackio_on_this_machine(tiny_recipe, tmp_path, monkeypatch):
    require("trackio", "trackio")
    for module in [name for name in sys.modules if name.split(".")[0] == "trackio"]:
        monkeypatch.delitem(sys.modules, module)  # trackio reads its folder when it is imported
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    lines = train_interrupted(tiny_recipe, tmp_path / "run", Trackio("tests", log_every=2))
    with sqlite3.connect(tmp_path / "trackio" / "tests.db") as database:
        rows = database.execute("select run_name, step, metrics from metrics order by step, id").fetchall()
    database.close()
    assert {name for name, *_ in rows} == {json.loads((tmp_path / "run" / "loggers.json").read_text())["trackio"]}
    logged = [(step, json.loads(metrics)) for _, step, metrics in rows]
    epochs = [metrics for _, metrics in logged if "loss" in metrics]
    assert [metrics["loss"] for metrics in epochs] == pytest.approx([line["loss"] for line in lines])
    assert sorted({step for step, metrics in logged if "step/loss" in metrics}) == [2, 4, 6]


def test_names_of_loggers_are_resolved():
    require("tensorboard", "tensorboard")
    own = Broken("never")
    first, second = resolve_callbacks(["tensorboard", own])
    assert isinstance(first, TensorBoard)
    assert second is own
    with pytest.raises(UsageError, match=r"logger 'tensorbord' is unknown; known: mlflow.* did you mean 'tensorboard'"):
        resolve_callbacks(["tensorbord"])


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "mlflow", "trackio"])
def test_a_logger_that_is_not_installed_raises_before_training(tiny_recipe, tmp_path, monkeypatch, name):
    monkeypatch.setattr(loggers, "find_spec", lambda package: None)
    with pytest.raises(UsageError, match=rf"{name} is not installed: pip install 'triptych\[{name}\]'"):
        train(tiny_recipe, tmp_path / "run", callbacks=[name], show_progress=False)
    assert not (tmp_path / "run").exists()


def test_the_recipe_is_flat_and_without_local_paths(tiny_recipe):
    values = flatten_recipe(tiny_recipe)
    assert values["training.batch_size"] == 16
    assert values["objectives.0.name"] == "infonce"
    assert values["data.manifest"] == "manifest.csv"
    assert all(isinstance(value, str | int | float) for value in values.values())
