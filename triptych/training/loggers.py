"""Callbacks that log the metrics of a run to TensorBoard, Weights & Biases, MLflow or Trackio."""

from __future__ import annotations

import json
import re
import secrets
import shutil
import time
import tomllib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from triptych.errors import UsageError, describe_unknown
from triptych.files import write_text
from triptych.recipe import Recipe
from triptych.training.callbacks import Callback, TrainingProgress, check_callback
from triptych.training.metrics_log import read_metrics

TENSORBOARD_FOLDER, LOGGERS_FILE = "tensorboard", "loggers.json"
# TensorBoard reads files with "tfevents" in their name. The name has no host name, unlike with TensorBoard's writer.
EVENTS_FILE = "events.out.tfevents.0.triptych"
LOG_EVERY = 50  # steps between two logged steps


class TensorBoard(Callback):
    """Logs the metrics of each epoch to the folder `tensorboard` of the run.

    The events are written anew from metrics.jsonl when a run is resumed, so that both agree. The step of an event is
    the epoch.

    Example:
        >>> import triptych
        >>> from triptych.training.loggers import TensorBoard
        >>> logger = TensorBoard()
        >>> space = triptych.train("trimodal", data="pairs.csv", epochs=1, callbacks=[logger])
    """

    def __init__(self) -> None:
        require_package("tensorboard")

    def on_start(self, progress: TrainingProgress) -> None:
        """Write the events of all completed epochs."""
        shutil.rmtree(progress.folder / TENSORBOARD_FOLDER, ignore_errors=True)
        for metrics in read_metrics(progress.folder):
            _add_event(progress.folder, metrics)

    def on_epoch(self, progress: TrainingProgress) -> None:
        """Add the event of an epoch."""
        _add_event(progress.folder, read_metrics(progress.folder)[-1])


def _add_event(folder: Path, metrics: dict[str, float]) -> None:
    from tensorboard.compat.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue] - made at run time
    from tensorboard.compat.proto.summary_pb2 import Summary  # pyright: ignore[reportAttributeAccessIssue]
    from tensorboard.summary.writer.record_writer import RecordWriter

    path = folder / TENSORBOARD_FOLDER / EVENTS_FILE
    step, wall_time = int(metrics.pop("epoch", 0)), metrics.pop("time", 0.0)
    values = [Summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
    is_new = not path.exists()
    path.parent.mkdir(exist_ok=True)
    with path.open("ab") as file:
        writer = RecordWriter(file)
        if is_new:
            writer.write(Event(wall_time=wall_time, file_version="brain.Event:2").SerializeToString())
        writer.write(Event(wall_time=wall_time, step=step, summary=Summary(value=values)).SerializeToString())


class RunLogger(ABC):
    """A callback that logs the losses of every `log_every`-th step, and the metrics of every epoch, to a service.

    The id of the run at the service is stored in the run folder, so that a resumed run continues the same run.
    """

    package: str  # the package of the service, and the name of triptych's extra

    def __init__(self, log_every: int = LOG_EVERY) -> None:
        self.log_every, self.module = log_every, require_package(self.package)
        self.is_open = False

    @abstractmethod
    def open_run(self, progress: TrainingProgress, run_id: str) -> str:
        """Start a run at the service, or continue the run `run_id` unless it is "". Return the id of the run."""

    @abstractmethod
    def log(self, values: dict[str, float], step: int) -> None:
        """Log the values of a step of the run."""

    @abstractmethod
    def close_run(self, has_failed: bool) -> None:
        """End the run at the service."""

    def on_start(self, progress: TrainingProgress) -> None:
        """Start or continue the run at the service."""
        ids: dict[str, str] = {}
        with suppress(OSError, ValueError):
            ids = json.loads((progress.folder / LOGGERS_FILE).read_text(encoding="utf-8"))
        ids[self.package] = self.open_run(progress, ids.get(self.package, ""))
        self.is_open = True
        write_text(progress.folder / LOGGERS_FILE, json.dumps(ids) + "\n")

    def on_step(self, progress: TrainingProgress) -> None:
        """Log the losses of a step."""
        if self.log_every > 0 and progress.step % self.log_every == 0:
            self.log({f"step/{name}": value for name, value in progress.losses.items()}, progress.step)

    def on_epoch(self, progress: TrainingProgress) -> None:
        """Log the metrics of an epoch."""
        self.log(progress.to_scalars(), progress.step)

    def on_end(self, progress: TrainingProgress, error: BaseException | None) -> None:  # noqa: ARG002
        """End the run at the service; the run has failed if an exception stopped training."""
        if self.is_open:
            self.close_run(has_failed=error is not None)
            self.is_open = False


class WandB(RunLogger):
    """Logs to Weights & Biases.

    Args:
        project: The W&B project.
        log_every: Number of steps between two logged steps; 0 logs only the epochs.
        settings: Further arguments of `wandb.init`, such as name, dir or mode="offline".

    Example:
        >>> import triptych
        >>> from triptych.training.loggers import WandB
        >>> logger = WandB("clips", mode="offline")
        >>> space = triptych.train("trimodal", data="pairs.csv", epochs=1, callbacks=[logger])
    """

    package = "wandb"

    def __init__(self, project: str = "triptych", log_every: int = LOG_EVERY, **settings: Any) -> None:
        super().__init__(log_every)
        self.project, self.settings = project, settings

    def open_run(self, progress: TrainingProgress, run_id: str) -> str:
        """Start or continue a W&B run; its config is the recipe."""
        run_id = run_id or secrets.token_hex(8)
        settings = {"name": progress.folder.name, "id": run_id, "resume": "allow"} | self.settings
        self._run = self.module.init(project=self.project, config=flatten_recipe(progress.recipe), **settings)
        return str(settings["id"])

    def log(self, values: dict[str, float], step: int) -> None:
        """Log the values of a step."""
        self._run.log(values, step=step)

    def close_run(self, has_failed: bool) -> None:
        """Finish the W&B run."""
        self._run.finish(exit_code=int(has_failed))


class Trackio(RunLogger):
    """Logs to Trackio: on this machine, or to a Hugging Face Space.

    Args:
        project: The Trackio project.
        log_every: Number of steps between two logged steps; 0 logs only the epochs.
        settings: Further arguments of `trackio.init`, such as name or space_id.

    Example:
        >>> import triptych
        >>> from triptych.training.loggers import Trackio
        >>> logger = Trackio("clips")
        >>> space = triptych.train("trimodal", data="pairs.csv", epochs=1, callbacks=[logger])  # doctest: +ELLIPSIS
        * Trackio project initialized: clips
        ...
    """

    package = "trackio"

    def __init__(self, project: str = "triptych", log_every: int = LOG_EVERY, **settings: Any) -> None:
        super().__init__(log_every)
        self.project, self.settings = project, settings

    def open_run(self, progress: TrainingProgress, run_id: str) -> str:
        """Start or continue a Trackio run; its config is the recipe. Trackio identifies a run by its name."""
        name = run_id or f"{progress.folder.name}-{secrets.token_hex(2)}"
        settings = {"name": name, "resume": "allow", "embed": False} | self.settings
        self._run = self.module.init(project=self.project, config=flatten_recipe(progress.recipe), **settings)
        return str(settings["name"])

    def log(self, values: dict[str, float], step: int) -> None:
        """Log the values of a step."""
        self._run.log(values, step=step)

    def close_run(self, has_failed: bool) -> None:  # noqa: ARG002 - Trackio does not store failures
        """Finish the Trackio run."""
        self._run.finish()


class MLflow(RunLogger):
    """Logs to MLflow. The active run of MLflow is not changed.

    Args:
        experiment: The MLflow experiment. The experiment is created if it does not exist.
        log_every: Number of steps between two logged steps; 0 logs only the epochs.
        tracking_uri: The tracking server; by default, MLflow's setting ($MLFLOW_TRACKING_URI).

    Example:
        >>> import triptych
        >>> from triptych.training.loggers import MLflow
        >>> logger = MLflow("clips")
        >>> space = triptych.train("trimodal", data="pairs.csv", epochs=1, callbacks=[logger])
    """

    package = "mlflow"

    def __init__(
        self, experiment: str = "triptych", log_every: int = LOG_EVERY, tracking_uri: str | None = None
    ) -> None:
        super().__init__(log_every)
        self.experiment, self.tracking_uri = experiment, tracking_uri

    def open_run(self, progress: TrainingProgress, run_id: str) -> str:
        """Start or continue an MLflow run; its parameters are the recipe."""
        self._client, self._run_id = self.module.MlflowClient(self.tracking_uri), run_id
        if run_id:
            self._client.update_run(run_id, status="RUNNING")
            return run_id
        experiment = self._client.get_experiment_by_name(self.experiment)
        experiment_id = experiment.experiment_id if experiment else self._client.create_experiment(self.experiment)
        self._run_id = self._client.create_run(experiment_id, run_name=progress.folder.name).info.run_id
        for name, value in flatten_recipe(progress.recipe).items():
            self._client.log_param(self._run_id, _to_mlflow_name(name), value)
        return self._run_id

    def log(self, values: dict[str, float], step: int) -> None:
        """Log the values of a step."""
        metric_class, now = self.module.entities.Metric, int(1000 * time.time())
        metrics = [metric_class(_to_mlflow_name(name), value, now, step) for name, value in values.items()]
        self._client.log_batch(self._run_id, metrics)

    def close_run(self, has_failed: bool) -> None:
        """End the MLflow run."""
        self._client.set_terminated(self._run_id, "FAILED" if has_failed else "FINISHED")


LOGGERS: dict[str, Callable[[], Callback]] = {
    "mlflow": MLflow,
    "tensorboard": TensorBoard,
    "trackio": Trackio,
    "wandb": WandB,
}


def resolve_callbacks(callbacks: Iterable[Callback | str]) -> list[Callback]:
    """Return callbacks, with the names of loggers replaced by loggers with default settings.

    Raises:
        UsageError: A logger is unknown or not installed, or an object is not a callback.
    """
    resolved: list[Callback] = []
    for callback in [callbacks] if isinstance(callbacks, str) else callbacks:
        if isinstance(callback, str) and callback not in LOGGERS:
            raise UsageError(describe_unknown("logger", callback, LOGGERS))
        resolved.append(LOGGERS[callback]() if isinstance(callback, str) else callback)
        check_callback(resolved[-1])
    return resolved


def require_package(package: str) -> Any:
    """Import a package that is an extra of triptych. Raise UsageError if the package is not installed."""
    if find_spec(package) is None:
        raise UsageError(f"{package} is not installed: pip install 'triptych[{package}]'")
    return import_module(package)


def flatten_recipe(recipe: Recipe) -> dict[str, Any]:
    """Return the values of a recipe by names such as training.epochs, without local paths.

    Example:
        >>> from triptych.recipe import Recipe
        >>> flatten_recipe(Recipe.load("trimodal"))["space.geometry"]
        'sphere'
    """
    return dict(_flatten(tomllib.loads(recipe.without_local_paths().to_toml()), ""))


def _flatten(value: Any, name: str) -> Iterable[tuple[str, Any]]:
    entries = value.items() if isinstance(value, dict) else enumerate(value) if _is_table_list(value) else None
    if entries is None:
        yield name, value if isinstance(value, int | float) else str(value)
        return
    for key, entry in entries:
        yield from _flatten(entry, f"{name}.{key}" if name else str(key))


def _is_table_list(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(entry, dict) for entry in value)


def _to_mlflow_name(name: str) -> str:
    """Replace the characters that MLflow does not allow in names: infonce(image,text).a_to_b has two of them."""
    return re.sub(r"[^\w./ -]+", "-", name).replace("-.", ".").strip("-")
