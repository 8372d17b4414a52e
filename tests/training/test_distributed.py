"""Two real processes give the losses, gradients and weights of one; one writes; they resume; one error ends both."""

import json
import os
import subprocess
import sys
import time

import pytest
import torch
from safetensors.torch import load_file

from tests.conftest import QUICK, identical
from tests.training.cases import CASES, gradients, prepared_case
from triptych.checkpoint import load
from triptych.errors import RecipeError
from triptych.recipe import Recipe
from triptych.space import Space
from triptych.training.distributed import ALONE, Team, refuse_batch_norm
from triptych.training.loop import train

pytestmark = pytest.mark.slow

CLOSE = 1e-5  # of weights after two epochs in float32: sums are taken in another order
# A whole batch of 5 rows in 2 processes has parts of 2 and 3; 40 rows of the world are left for 8 steps.
SMALL = [
    "training.batch=5",
    "training.epochs=2",
    "training.validate=1",
    "training.optimizer=sgd",
    "training.learning_rate=0.1",
]


def torchrun(*words, check=True):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *map(str, words)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, check=check, env=environment, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def small(world, tmp_path_factory):
    recipe = Recipe.load("trimodal", [*QUICK, *SMALL, f"data.manifest={world}"])
    path = tmp_path_factory.mktemp("recipe") / "small.toml"
    path.write_text(recipe.text())
    return recipe, path


@pytest.fixture(scope="module")
def together(small, tmp_path_factory):
    """What tests/training/two_processes.py leaves behind."""
    folder = tmp_path_factory.mktemp("together")
    started = time.monotonic()
    ended = torchrun("-m", "tests.training.two_processes", small[1], folder, check=False)
    return folder, ended, time.monotonic() - started


@pytest.mark.parametrize("name", CASES)
def test_losses_and_gradients_of_two_processes_are_those_of_one(small, together, name):
    found = load_file(together[0] / "gradients.safetensors")
    space, terms, batch = prepared_case(small[0], name)
    values, grads = gradients(space, terms, batch, 0)
    assert values
    for chunk in (0, 2):
        start = f"{name} {chunk} "
        mine = {key.removeprefix(start): value for key, value in found.items() if key.startswith(start)}
        assert mine.keys() == (values | grads).keys()
        for key, value in (values | grads).items():
            assert torch.allclose(mine[key], value, rtol=1e-9, atol=1e-12), f"{key}, chunk {chunk}"


def test_a_run_of_two_processes_resumes_to_its_own_weights(together):
    assert identical(load(together[0] / "broken"), load(together[0] / "whole"))
    lines = (together[0] / "broken" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == [1, 2, 3, 4]


def test_an_error_in_one_process_ends_all(together):
    folder, ended, took = together
    assert (folder / "waiting").exists(), ended.stderr[-2000:]
    assert ended.returncode != 0
    assert "one process has failed" in ended.stderr
    assert took < 250, "the other process was left waiting"


def test_the_command_in_two_processes_gives_the_weights_of_one(small, tmp_path):
    recipe, path = small
    one = train(recipe, tmp_path / "one", show=False)
    ended = torchrun("-m", "triptych", "train", path, "-o", tmp_path / "two", "--set", "training.chunk=2")
    two = load(tmp_path / "two")
    for (name, a), (_, b) in zip(one.named_parameters(), two.named_parameters(), strict=True):
        assert torch.allclose(a, b, atol=CLOSE), f"{name}: {(a - b).abs().max()}"
    losses = []
    for side in ("one", "two"):
        lines = (tmp_path / side / "metrics.jsonl").read_text().splitlines()
        losses.append([json.loads(line)["loss"] for line in lines])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert ended.stderr.count("training:") == 1, "one bar, not one for each process"
    assert ended.stdout.count("trained:") == 1
    assert json.loads((tmp_path / "two" / "environment.json").read_text())["processes"] == 2


def test_batch_norm_is_refused_where_it_would_see_parts_of_the_batch(quick):
    words = ["space.encoders.audio={name='speech_cnn', width=8, norm='batch'}"]
    recipe = Recipe.load("trimodal", [*QUICK[:1], *words])
    space = Space(recipe)
    refuse_batch_norm(space, recipe, ALONE)
    with pytest.raises(RecipeError, match=r"encoders\.audio\..*with several processes.*norm = item"):
        refuse_batch_norm(space, recipe, Team(0, 2))
    chunked = Recipe.load("trimodal", [*QUICK[:1], *words, "training.chunk=4"])
    with pytest.raises(RecipeError, match=r"with training\.chunk"):
        refuse_batch_norm(space, chunked, ALONE)
