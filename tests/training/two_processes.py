"""The program of two processes, each with its own shard; started by torchrun from test_distributed.py."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tests.training.cases import CASES, build_case, compute_gradients, split_batch
from triptych.data.loader import Loader
from triptych.errors import TrainingError
from triptych.recipe import Recipe
from triptych.training import loop
from triptych.training.distributed import DistributedContext, init_distributed


def save_gradients(recipe: Recipe, context: DistributedContext, folder: Path) -> None:
    """Save the loss terms and gradients of each case for a batch in two unequal shards, with and without chunks."""
    tensors = {}
    for name in CASES:
        space, objectives, batch = build_case(recipe, name)
        for chunk_size in (0, 2):
            values, grads = compute_gradients(
                space, objectives, split_batch(batch, context.rank, context.world_size), chunk_size, context
            )
            tensors |= {f"{name} {chunk_size} {key}": value for key, value in (values | grads).items()}
    if context.is_main:
        save_file(tensors, folder / "gradients.safetensors")


def interrupt_and_resume(recipe: Recipe, context: DistributedContext, folder: Path) -> None:
    """Train without interruption, and once with an interruption after two epochs."""
    loop.train(recipe, folder / "uninterrupted", show_progress=False)
    with pytest.MonkeyPatch.context() as patch:
        epoch = Loader.iter_epoch

        def interrupted_epoch(self, number):
            if number == 2:
                raise TrainingError("interrupted")
            return epoch(self, number)

        patch.setattr(Loader, "iter_epoch", interrupted_epoch)
        with pytest.raises(TrainingError, match="interrupted"):
            loop.train(recipe, folder / "interrupted", show_progress=False)
    context.barrier()  # until the main process has finished writing
    loop.train(recipe, folder / "interrupted", show_progress=False)


def main() -> None:
    """Run everything, and finally raise an error in one process."""
    torch.set_num_threads(1)
    recipe, folder = Recipe.load(sys.argv[1]), Path(sys.argv[2])
    with init_distributed() as context:
        assert context.world_size == 2
        assert context.all_gather_strings([f"of {context.rank}", "of all"]) == ["of 0", "of all", "of 1", "of all"]
        save_gradients(recipe, context, folder)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(loop, "init_distributed", lambda _device: _ExistingContext(context))
            interrupt_and_resume(replace(recipe, training=replace(recipe.training, epochs=4)), context, folder)
        if context.rank == 1:
            raise TrainingError("one process has failed")
        (folder / "waiting").touch()
        context.barrier()


class _ExistingContext:
    def __init__(self, context: DistributedContext) -> None:
        self.context = context

    def __enter__(self) -> DistributedContext:
        return self.context

    def __exit__(self, *_) -> None:
        return None


main()
