"""NaN and divergence abort an epoch and name the loss term and the rows."""

import json
import math
from dataclasses import replace

import pytest

from tests.training.cases import load_batch, with_training
from triptych.checkpoint import load
from triptych.errors import InputError, TrainingError
from triptych.space import Space
from triptych.training.distributed import DistributedContext
from triptych.training.epoch import train_one_epoch
from triptych.training.loop import train
from triptych.training.objective_set import ObjectiveSet
from triptych.training.optimizer import build_optimizer
from triptych.training.step import check_divergence


def count_epochs(folder):
    path = folder / "metrics.jsonl"
    return len(path.read_text().splitlines()) if path.exists() else 0


def test_a_nan_loss_aborts_and_names_the_term_and_the_rows(tiny_recipe, tmp_path):
    diverging = with_training(tiny_recipe, learning_rate=1e3, max_grad_norm=1e12, epochs=30, warmup_ratio=0.0)
    with pytest.raises(
        TrainingError, match=r"epoch \d+, step \d+: infonce\(.*in the batch of rows \d+.*16 rows"
    ) as error:
        train(diverging, tmp_path / "run", show_progress=False)
    error_record = json.loads((tmp_path / "run" / "error.json").read_text())
    assert len(error_record["rows"]) == 16
    assert str(error.value).startswith(error_record["reason"])
    num_epochs = count_epochs(tmp_path / "run")
    assert num_epochs == 0 or load(tmp_path / "run").history["epochs"] == num_epochs, "the last completed epoch is gone"


def test_a_diverging_loss_aborts_before_it_is_infinite(tiny_recipe, tmp_path):
    first_values = {"triplet.a_to_b": 0.2, "loss": 3.0}
    check_divergence({"triplet.a_to_b": 999.0, "loss": 2999.0}, first_values)
    with pytest.raises(InputError, match=r"triplet\.a_to_b diverged: 1\.2e\+03, from 0\.2"):
        check_divergence({"triplet.a_to_b": 1200.0, "loss": 3.0}, first_values)
    diverging = replace(
        tiny_recipe, objectives=(replace(tiny_recipe.objectives[0], name="align_uniform", settings={}),)
    )
    diverging = replace(diverging, space=replace(diverging.space, geometry="free"))
    diverging = with_training(
        diverging, learning_rate=1.0, max_grad_norm=1e12, epochs=30, warmup_ratio=0.0, optimizer="sgd", momentum=0.0
    )
    with pytest.raises(TrainingError, match=r"align_uniform\(.*(diverged|NaN|infinit).*in the batch of rows"):
        train(diverging, tmp_path / "run", show_progress=False)


def test_an_epoch_without_batches_returns_no_metrics(tiny_recipe):
    space, objectives = Space(tiny_recipe), ObjectiveSet(tiny_recipe)
    optimizer = build_optimizer(tiny_recipe, space, objectives)
    assert train_one_epoch(space, objectives, optimizer, [], 0, 1) == {}


def test_a_nan_weight_raises_a_training_error_without_a_run(tiny_recipe, run_dir):
    space, objectives = load(run_dir), ObjectiveSet(tiny_recipe)
    optimizer, batch = build_optimizer(tiny_recipe, space, objectives), load_batch(tiny_recipe, space)
    next(space.heads.parameters()).data.fill_(math.nan)
    with pytest.raises(TrainingError, match="epoch 3, step 1: "):
        train_one_epoch(space, objectives, optimizer, [batch], 2, 1)


def test_the_metrics_are_the_means_over_the_steps(tiny_recipe, run_dir):
    space, objectives = load(run_dir), ObjectiveSet(tiny_recipe)
    optimizer, batch, steps = build_optimizer(tiny_recipe, space, objectives), load_batch(tiny_recipe, space), []
    metrics = train_one_epoch(
        space, objectives, optimizer, [batch] * 3, 0, 3, on_step=lambda values, _: steps.append(values)
    )
    assert metrics["steps"] == len(steps) == 3
    for name in steps[0]:
        assert metrics[name] == pytest.approx(sum(values[name] for values in steps) / 3)
    assert metrics["infonce(image,text).temperature"] > 0


class RecordingContext(DistributedContext):
    """A single process that records the seeds of its epochs."""

    def __init__(self):
        super().__init__()
        self.seeds = []

    def seed(self, seed):
        self.seeds.append(seed)
        super().seed(seed)


def test_every_epoch_and_training_seed_has_its_own_random_numbers(tiny_recipe):
    context = RecordingContext()
    for training_seed in range(3):
        recipe = with_training(tiny_recipe, seed=training_seed)
        space, objectives = Space(recipe), ObjectiveSet(recipe)
        optimizer = build_optimizer(recipe, space, objectives)
        for epoch in range(3):
            train_one_epoch(space, objectives, optimizer, [], epoch, 1, context)
    # Published runs depend on these seeds.
    assert context.seeds == [seed * 1_000_003 + epoch + 1 for seed in range(3) for epoch in range(3)]


def test_an_epoch_trains_with_dropout_after_an_evaluation(tiny_recipe):
    space, objectives = Space(tiny_recipe), ObjectiveSet(tiny_recipe)
    space.eval()
    train_one_epoch(space, objectives, build_optimizer(tiny_recipe, space, objectives), [], 0, 1)
    assert space.training


def test_the_learning_rate_follows_the_schedule_of_the_whole_run(tiny_recipe, run_dir):
    recipe = with_training(tiny_recipe, epochs=4, warmup_ratio=0.25)
    space, objectives = load(run_dir), ObjectiveSet(recipe)
    space.recipe = recipe
    optimizer, batch, rates = build_optimizer(recipe, space, objectives), load_batch(recipe, space), []
    for epoch in (0, 2):
        train_one_epoch(
            space,
            objectives,
            optimizer,
            [batch] * 3,
            epoch,
            3,
            on_step=lambda *_: rates.append(optimizer.param_groups[0]["lr"] / optimizer.param_groups[0]["lr_scale"]),
        )
    peak = recipe.training.learning_rate
    decay = [peak * 0.5 * (1 + math.cos(math.pi * (step - 3) / 9)) for step in (6, 7, 8)]
    assert rates == pytest.approx([peak / 4, peak / 2, peak * 3 / 4, *decay])
