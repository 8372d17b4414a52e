"""Two real processes give the losses, gradients and weights of one; they resume, and an error in one ends both."""

import json
import os
import subprocess
import sys
import time

import pytest
import torch
from safetensors.torch import load_file

from tests.conftest import TINY_OVERRIDES, have_identical_weights
from tests.training.cases import CASES, build_case, compute_gradients
from triptych.checkpoint import load
from triptych.errors import RecipeError
from triptych.recipe import Recipe
from triptych.space import Space
from triptych.training.distributed import SINGLE_PROCESS, DistributedContext, check_batch_norm
from triptych.training.loop import train

pytestmark = pytest.mark.slow

WEIGHT_TOLERANCE = 1e-5  # after two epochs in float32: the order of summation differs
# A batch of 5 rows in 2 processes has shards of 2 and 3; 40 rows give 8 steps.
SMALL_OVERRIDES = [
    "training.batch_size=5",
    "training.epochs=2",
    "training.eval_every=1",
    "training.optimizer=sgd",
    "training.learning_rate=0.1",
]


def run_torchrun(*arguments, check=True):
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        *map(str, arguments),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, check=check, env=environment, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def small_recipe(synthetic_manifest, tmp_path_factory):
    recipe = Recipe.load("trimodal", [*TINY_OVERRIDES, *SMALL_OVERRIDES, f"data.manifest={synthetic_manifest}"])
    path = tmp_path_factory.mktemp("recipe") / "small.toml"
    path.write_text(recipe.to_toml())
    return recipe, path


@pytest.fixture(scope="module")
def two_process_run(small_recipe, tmp_path_factory):
    """Run tests/training/two_processes.py and return its folder, process and duration."""
    folder = tmp_path_factory.mktemp("distributed")
    start = time.monotonic()
    process = run_torchrun("-m", "tests.training.two_processes", small_recipe[1], folder, check=False)
    return folder, process, time.monotonic() - start


@pytest.mark.parametrize("name", CASES)
def test_two_processes_give_the_losses_and_gradients_of_one(small_recipe, two_process_run, name):
    stored = load_file(two_process_run[0] / "gradients.safetensors")
    space, objectives, batch = build_case(small_recipe[0], name)
    values, grads = compute_gradients(space, objectives, batch, 0)
    assert values
    for chunk in (0, 2):
        prefix = f"{name} {chunk} "
        distributed = {key.removeprefix(prefix): value for key, value in stored.items() if key.startswith(prefix)}
        assert distributed.keys() == (values | grads).keys()
        for key, value in (values | grads).items():
            assert torch.allclose(distributed[key], value, rtol=1e-9, atol=1e-12), f"{key}, chunk {chunk}"


def test_a_distributed_run_resumes_to_identical_weights(two_process_run):
    assert have_identical_weights(load(two_process_run[0] / "interrupted"), load(two_process_run[0] / "uninterrupted"))
    lines = (two_process_run[0] / "interrupted" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == [1, 2, 3, 4]


def test_an_error_in_one_process_ends_all(two_process_run):
    folder, process, seconds = two_process_run
    assert (folder / "waiting").exists(), process.stderr[-2000:]
    assert process.returncode != 0
    assert "one process has failed" in process.stderr
    assert seconds < 250, "the other process kept waiting"


def test_the_train_command_gives_the_same_weights_in_two_processes(small_recipe, tmp_path):
    recipe, path = small_recipe
    one = train(recipe, tmp_path / "one", show_progress=False)
    process = run_torchrun(
        "-m", "triptych", "train", path, "-o", tmp_path / "two", "--set", "training.grad_cache_chunk=2"
    )
    two = load(tmp_path / "two")
    for (name, a), (_, b) in zip(one.named_parameters(), two.named_parameters(), strict=True):
        assert torch.allclose(a, b, atol=WEIGHT_TOLERANCE), f"{name}: {(a - b).abs().max()}"
    losses = []
    for side in ("one", "two"):
        lines = (tmp_path / side / "metrics.jsonl").read_text().splitlines()
        losses.append([json.loads(line)["loss"] for line in lines])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert process.stderr.count("training:") == 1, "one progress bar, not one per process"
    assert process.stdout.count("trained:") == 1
    assert json.loads((tmp_path / "two" / "environment.json").read_text())["processes"] == 2


def test_batch_norm_raises_with_several_processes_or_chunks(tiny_recipe):
    overrides = ["space.encoders.audio={name='speech_cnn', feature_dim=8, norm='batch'}"]
    recipe = Recipe.load("trimodal", [*TINY_OVERRIDES[:1], *overrides])
    space = Space(recipe)
    check_batch_norm(space, recipe, SINGLE_PROCESS)
    with pytest.raises(RecipeError, match=r"encoders\.audio\..*with several processes.*norm = item"):
        check_batch_norm(space, recipe, DistributedContext(0, 2))
    chunked = Recipe.load("trimodal", [*TINY_OVERRIDES[:1], *overrides, "training.grad_cache_chunk=4"])
    with pytest.raises(RecipeError, match=r"with training\.grad_cache_chunk"):
        check_batch_norm(space, chunked, SINGLE_PROCESS)
