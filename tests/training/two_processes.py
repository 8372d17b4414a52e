"""What two processes do together, each with its own rows; started by torchrun from test_distributed.py."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tests.training.cases import CASES, gradients, prepared_case, split
from triptych.data.loader import Loader
from triptych.errors import TrainingError
from triptych.recipe import Recipe
from triptych.training import loop
from triptych.training.distributed import Team, together


def compare_gradients(recipe: Recipe, team: Team, into: Path) -> None:
    """The terms and gradients of every case, of the batch in two unequal parts, whole and in chunks."""
    found = {}
    for name in CASES:
        space, terms, batch = prepared_case(recipe, name)
        for chunk in (0, 2):
            values, grads = gradients(space, terms, split(batch, team.rank, team.count), chunk, team)
            found |= {f"{name} {chunk} {key}": value for key, value in (values | grads).items()}
    if team.leads:
        save_file(found, into / "gradients.safetensors")


def resume(recipe: Recipe, team: Team, into: Path) -> None:
    """An unbroken run, and one that breaks off after two epochs and goes on."""
    loop.train(recipe, into / "whole", show=False)
    with pytest.MonkeyPatch.context() as patch:
        epoch = Loader.epoch

        def breaking(self, number):
            if number == 2:
                raise TrainingError("broken off")
            return epoch(self, number)

        patch.setattr(Loader, "epoch", breaking)
        with pytest.raises(TrainingError, match="broken off"):
            loop.train(recipe, into / "broken", show=False)
    team.wait()  # until the first has written what it was writing
    loop.train(recipe, into / "broken", show=False)


def main() -> None:
    """Everything, and at last an error in one process alone."""
    torch.set_num_threads(1)
    recipe, into = Recipe.load(sys.argv[1]), Path(sys.argv[2])
    with together() as team:
        assert team.count == 2
        assert team.texts([f"of {team.rank}", "of all"]) == ["of 0", "of all", "of 1", "of all"]
        compare_gradients(recipe, team, into)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(loop, "together", lambda: _as_it_is(team))
            resume(replace(recipe, training=replace(recipe.training, epochs=4)), team, into)
        if team.rank == 1:
            raise TrainingError("one process has failed")
        (into / "waiting").touch()
        team.wait()


class _as_it_is:  # noqa: N801 - reads as the function it stands for
    def __init__(self, team: Team) -> None:
        self.team = team

    def __enter__(self) -> Team:
        return self.team

    def __exit__(self, *_) -> None:
        return None


main()
