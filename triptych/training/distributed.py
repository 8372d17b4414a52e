"""The processes that train together: one alone, or those that torchrun has started."""

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

from triptych.errors import RecipeError, TrainingError
from triptych.recipe import Recipe

PATIENCE = timedelta(hours=12)  # others wait while one validates or saves; torchrun itself sees who has died
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class Team:
    """This process and those beside it. Every batch is split among them; everything but encoding is done by each."""

    def __init__(self, rank: int = 0, count: int = 1, device: torch.device | None = None) -> None:
        self.rank, self.count, self.device = rank, count, device or torch.device("cpu")
        self._own_random: Tensor | None = None

    @property
    def leads(self) -> bool:
        """Whether this is the one that writes and shows."""
        return self.rank == 0

    def wait(self) -> None:
        """Until every process has come here."""
        if self.count > 1:
            self.total(0)

    def total(self, number: int) -> int:
        """The sum of every process's number."""
        if self.count == 1:
            return number
        sums = torch.tensor(number, device=self.device)
        _talk(dist.all_reduce, sums)
        return int(sums)

    def told(self, number: float) -> float:
        """The leader's number."""
        if self.count == 1:
            return number
        said = torch.tensor(number, dtype=torch.float64, device=self.device)
        _talk(dist.broadcast, said, 0)
        return float(said)

    def place(self, rows: int) -> slice:
        """Where this process's rows stand among those of all."""
        counts = self.gather(torch.tensor([rows], device=self.device)).tolist()
        first = sum(counts[: self.rank])
        return slice(first, first + rows)

    def gather(self, mine: Tensor) -> Tensor:
        """The rows of every process, in order: (n, …) to (N, …). What is shorter is filled up with zeros."""
        if self.count == 1:
            return mine
        if mine.dtype == torch.bool:
            return self.gather(mine.to(torch.uint8)).bool()
        shape = torch.tensor(mine.shape, device=self.device)
        shapes = [torch.empty_like(shape) for _ in range(self.count)]
        _talk(dist.all_gather, shapes, shape)
        padded = mine.new_zeros(torch.stack(shapes).amax(dim=0).tolist())
        padded[tuple(slice(size) for size in mine.shape)] = mine
        found = [torch.empty_like(padded) for _ in range(self.count)]
        _talk(dist.all_gather, found, padded)
        return torch.cat([rows[: int(size[0])] for rows, size in zip(found, shapes, strict=True)])

    def texts(self, mine: Iterable[str]) -> list[str]:
        """The lines of every process. As JSON: nothing is unpickled."""
        if self.count == 1:
            return list(mine)
        packed = torch.tensor(list(json.dumps(list(mine)).encode() + b"\n"), dtype=torch.uint8, device=self.device)
        return [text for line in bytes(self.gather(packed).tolist()).splitlines() for text in json.loads(line)]

    def agree(self, modules: Iterable[nn.Module]) -> None:
        """Give every process the leader's parameters: machines that differ may draw or round differently."""
        if self.count > 1:
            for parameter in _learning(modules):
                _talk(dist.broadcast, parameter.data, 0)

    def sum_gradients(self, parted: Iterable[nn.Module], whole: Iterable[nn.Module]) -> None:
        """Add up the gradients of all processes, in one message.

        What was parted (encoders, heads) has a part of its gradient in each; what saw the whole batch (similarity,
        objectives) has all of it in every one, so only the leader's counts.
        """
        if self.count == 1:
            return
        own = [(p, True) for p in _learning(parted)] + [(p, self.leads) for p in _learning(whole)]
        there = torch.tensor([float(p.grad is not None) for p, _ in own], device=self.device)
        flat = [(p.grad if p.grad is not None and counts else torch.zeros_like(p)).flatten() for p, counts in own]
        sums = torch.cat([there, *flat])
        _talk(dist.all_reduce, sums)
        there, *found = sums.split([len(own), *(p.numel() for p, _ in own)])
        for (parameter, _), gradient, some in zip(own, found, there.tolist(), strict=True):
            parameter.grad = gradient.view_as(parameter).clone() if some else None

    def seed(self, seed: int) -> None:
        """The same random numbers for all where they compute the same, and others for each one's own rows."""
        if self.count > 1:
            # Mixed, not added up: seeds of neighbouring epochs are neighbours.
            own = np.random.SeedSequence([seed, self.rank + 1]).generate_state(1, np.uint64)
            torch.manual_seed(int(own[0] >> 1))
            self._own_random = random_state(self.device)
        torch.manual_seed(seed)

    @contextmanager
    def own_random(self) -> Iterator[None]:
        """Draw this process's own random numbers: dropout must differ from rows to rows, draws of the loss must not."""
        if self._own_random is None:
            yield
            return
        shared = random_state(self.device)
        set_random_state(self._own_random, self.device)
        try:
            yield
        finally:
            self._own_random = random_state(self.device)
            set_random_state(shared, self.device)


ALONE = Team()


@contextmanager
def together() -> Iterator[Team]:
    """The processes that torchrun has started, or this one alone; each on its own GPU where there are any."""
    told = {"WORLD_SIZE": "1", "RANK": "0", "LOCAL_RANK": "0"} | os.environ
    count, rank, local = (int(told[key]) for key in ("WORLD_SIZE", "RANK", "LOCAL_RANK"))
    gpus = torch.cuda.device_count()
    device = torch.device("cuda", local % gpus) if gpus else torch.device("cpu")
    if count == 1:
        yield Team(device=device)
        return
    started = not dist.is_initialized()
    if started:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=PATIENCE)
    try:
        yield Team(rank, count, device)
    finally:
        if started:
            dist.destroy_process_group()


def leads() -> bool:
    """Whether this process is the one that writes and shows, before and after they work together too."""
    return os.environ.get("RANK", "0") == "0"


def refuse_batch_norm(space: nn.Module, recipe: Recipe, team: Team) -> None:
    """A batch norm takes its numbers from the rows it sees at once; in parts they would not be those of the batch."""
    parts = "several processes" if team.count > 1 else "training.chunk" if recipe.training.chunk else ""
    for name, module in space.named_modules():
        if parts and isinstance(module, NORMS) and module.training:
            raise RecipeError(
                f"{name} is a batch norm: with {parts} its numbers would be those of a part of the batch; "
                "choose another norm (speech_cnn: norm = item), or one process and training.chunk = 0"
            )


def random_state(device: torch.device) -> Tensor:
    """The state of the generator that draws on a device."""
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def set_random_state(state: Tensor, device: torch.device) -> None:
    """Put back what `random_state` gave."""
    if device.type == "cuda":
        torch.cuda.set_rng_state(state, device)
    else:
        torch.set_rng_state(state)


def _talk(say: Callable[..., Any], *what: Any) -> None:
    """Speak with the other processes; when one of them has died, its own message is the one to read."""
    try:
        say(*what)
    except RuntimeError as error:
        raise TrainingError(f"another process has ended, so this one does too ({str(error)[:100]} …)") from error


def _learning(modules: Iterable[nn.Module]) -> list[nn.Parameter]:
    return [p for module in modules for p in module.parameters() if p.requires_grad]
