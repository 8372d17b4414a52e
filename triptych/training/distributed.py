"""Data-parallel training: a single process, or the processes that torchrun starts."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from triptych.devices import choose_device
from triptych.errors import RecipeError, TrainingError
from triptych.recipe import Recipe

# The timeout is long, since all processes wait while the main process validates. torchrun detects dead processes.
TIMEOUT = timedelta(hours=12)
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class DistributedContext:
    """The rank of this process and its collective operations. Each process encodes a shard of each batch."""

    def __init__(self, rank: int = 0, world_size: int = 1, device: torch.device | None = None) -> None:
        self.rank, self.world_size, self.device = rank, world_size, device or torch.device("cpu")
        self._rank_rng_state: Tensor | None = None

    @property
    def is_main(self) -> bool:
        """Whether this process has rank 0. Only rank 0 writes files and shows progress."""
        return self.rank == 0

    def barrier(self) -> None:
        """Wait until all processes have called this method."""
        if self.world_size > 1:
            self.all_reduce_sum(0)

    def all_reduce_sum(self, value: int) -> int:
        """Return the sum of the values that the processes passed."""
        if self.world_size == 1:
            return value
        tensor = torch.tensor(value, device=self.device)
        _run_collective(dist.all_reduce, tensor)
        return int(tensor)

    def broadcast(self, value: float) -> float:
        """Return the value that the main process passed."""
        if self.world_size == 1:
            return value
        tensor = torch.tensor(value, dtype=torch.float64, device=self.device)
        _run_collective(dist.broadcast, tensor, 0)
        return float(tensor)

    def local_slice(self, num_rows: int) -> slice:
        """Return the slice of this process's rows among the gathered rows of all processes."""
        counts = self.all_gather(torch.tensor([num_rows], device=self.device)).tolist()
        start = sum(counts[: self.rank])
        return slice(start, start + num_rows)

    def all_gather(self, local: Tensor) -> Tensor:
        """Concatenate the rows of all processes in rank order: (n, …) to (N, …). Other dimensions are zero-padded."""
        if self.world_size == 1:
            return local
        if local.dtype == torch.bool:
            return self.all_gather(local.to(torch.uint8)).bool()
        shape = torch.tensor(local.shape, device=self.device)
        shapes = [torch.empty_like(shape) for _ in range(self.world_size)]
        _run_collective(dist.all_gather, shapes, shape)
        padded = local.new_zeros(torch.stack(shapes).amax(dim=0).tolist())
        padded[tuple(slice(size) for size in local.shape)] = local
        gathered = [torch.empty_like(padded) for _ in range(self.world_size)]
        _run_collective(dist.all_gather, gathered, padded)
        return torch.cat([rows[: int(size[0])] for rows, size in zip(gathered, shapes, strict=True)])

    def all_gather_strings(self, strings: Iterable[str]) -> list[str]:
        """Concatenate the strings of all processes. The strings are sent as JSON, so that nothing is unpickled."""
        if self.world_size == 1:
            return list(strings)
        encoded = torch.tensor(list(json.dumps(list(strings)).encode() + b"\n"), dtype=torch.uint8, device=self.device)
        return [text for line in bytes(self.all_gather(encoded).tolist()).splitlines() for text in json.loads(line)]

    def broadcast_parameters(self, modules: Iterable[nn.Module]) -> None:
        """Copy the main process's parameters to all processes, since initialisation may differ between machines."""
        if self.world_size > 1:
            for parameter in _trainable_parameters(modules):
                _run_collective(dist.broadcast, parameter.data, 0)

    def all_reduce_gradients(self, sharded: Iterable[nn.Module], replicated: Iterable[nn.Module]) -> None:
        """Sum the gradients over all processes in one all-reduce.

        Sharded modules (encoders, heads) have a part of the gradient in each process. Replicated modules (similarity,
        objectives) have the full gradient in every process, so only the gradient of the main process is added.
        """
        if self.world_size == 1:
            return
        parameters = [(p, True) for p in _trainable_parameters(sharded)]
        parameters += [(p, self.is_main) for p in _trainable_parameters(replicated)]
        has_gradient = torch.tensor([float(p.grad is not None) for p, _ in parameters], device=self.device)
        gradients = [
            (p.grad if p.grad is not None and adds else torch.zeros_like(p)).flatten() for p, adds in parameters
        ]
        sums = torch.cat([has_gradient, *gradients])
        _run_collective(dist.all_reduce, sums)
        has_gradient, *reduced = sums.split([len(parameters), *(p.numel() for p, _ in parameters)])
        for (parameter, _), gradient, is_present in zip(parameters, reduced, has_gradient.tolist(), strict=True):
            parameter.grad = gradient.view_as(parameter).clone() if is_present else None

    def seed(self, seed: int) -> None:
        """Seed the generator that all ranks share, and a different generator per rank for `per_rank_rng`."""
        if self.world_size > 1:
            # Hash the seed and the rank: seed + rank would be the same number for another epoch and rank.
            rank_seed = np.random.SeedSequence([seed, self.rank + 1]).generate_state(1, np.uint64)
            torch.manual_seed(int(rank_seed[0] >> 1))
            self._rank_rng_state = read_rng_state(self.device)
        torch.manual_seed(seed)

    @contextmanager
    def per_rank_rng(self) -> Iterator[None]:
        """Use the generator of this rank inside the block, so that dropout masks differ between shards."""
        if self._rank_rng_state is None:
            yield
            return
        shared_state = read_rng_state(self.device)
        set_rng_state(self._rank_rng_state, self.device)
        try:
            yield
        finally:
            self._rank_rng_state = read_rng_state(self.device)
            set_rng_state(shared_state, self.device)


SINGLE_PROCESS = DistributedContext()


@contextmanager
def init_distributed(device_name: str | torch.device | None = None) -> Iterator[DistributedContext]:
    """Join the process group if torchrun started this process. Each process uses its own GPU, if there are GPUs."""
    environment = {"WORLD_SIZE": "1", "RANK": "0", "LOCAL_RANK": "0"} | os.environ
    world_size, rank, local_rank = (int(environment[key]) for key in ("WORLD_SIZE", "RANK", "LOCAL_RANK"))
    device = choose_device(device_name, local_rank)
    if world_size == 1:
        yield DistributedContext(device=device)
        return
    if device.type == "mps":
        raise TrainingError("several processes cannot train on mps; use one process, or --device cpu")
    owns_process_group = not dist.is_initialized()
    if owns_process_group:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=TIMEOUT)
    try:
        yield DistributedContext(rank, world_size, device)
    finally:
        if owns_process_group:
            dist.destroy_process_group()


def is_main_process() -> bool:
    """Return whether this process has rank 0. May be called outside of `init_distributed`."""
    return os.environ.get("RANK", "0") == "0"


def check_batch_norm(space: nn.Module, recipe: Recipe, context: DistributedContext) -> None:
    """Raise a RecipeError if a batch norm would compute its statistics over a part of the batch."""
    chunk_cause = "training.grad_cache_chunk" if recipe.training.grad_cache_chunk else ""
    cause = "several processes" if context.world_size > 1 else chunk_cause
    for name, module in space.named_modules():
        if cause and isinstance(module, BATCH_NORMS) and module.training:
            raise RecipeError(
                f"{name} is a batch norm: with {cause} its statistics would cover only a part of the batch; "
                "use another norm (speech_cnn: norm = item), or one process and training.grad_cache_chunk = 0"
            )


def read_rng_state(device: torch.device) -> Tensor:
    """Return the state of a device's random number generator."""
    if device.type == "mps":
        return torch.mps.get_rng_state()
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def set_rng_state(state: Tensor, device: torch.device) -> None:
    """Restore a state from `read_rng_state`."""
    if device.type == "cuda":
        torch.cuda.set_rng_state(state, device)
    elif device.type == "mps":
        torch.mps.set_rng_state(state)
    else:
        torch.set_rng_state(state)


def _run_collective(collective: Callable[..., Any], *arguments: Any) -> None:
    """Run a collective operation. Raise a TrainingError if another process has failed."""
    try:
        collective(*arguments)
    except RuntimeError as error:
        raise TrainingError(f"another process has failed; see its error message ({str(error)[:100]} …)") from error


def _trainable_parameters(modules: Iterable[nn.Module]) -> list[nn.Parameter]:
    return [p for module in modules for p in module.parameters() if p.requires_grad]
