"""A step of 16,384 pairs on cached features: gradient caching and streaming against a plain step.

One step goes from pooled features in memory to updated weights: two heads, InfoNCE in both directions, backward, AdamW.
Each implementation runs in its own process; memory is the peak above the resident memory before the first step.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.measure import peak_over_baseline
from triptych.interfaces import Batch, Modality
from triptych.recipe import Recipe
from triptych.space import Space
from triptych.training.objective_set import ObjectiveSet
from triptych.training.optimizer import build_optimizer
from triptych.training.step import take_step

LARGE_BATCH, CHUNK, BLOCK, STEPS = 16_384, 1024, 2048, 3
COMPARED_BATCH = 4096  # a batch size at which the plain step fits into memory
EMBED_DIM, HIDDEN = 512, 1024
OVERRIDES = [
    f"space.embed_dim={EMBED_DIM}",
    f"space.head={{name='mlp', hidden_dim={HIDDEN}}}",
    f"training.grad_cache_chunk={CHUNK}",
]
OVERRIDES += [
    "space.pooling=mean",
    "space.shared_hidden_dim=0",
    f"objectives.0.stream_block={BLOCK}",
]


def make_batch(space: Space, rows: int) -> Batch:
    """Make random features with the sizes of cached features: mean and maximum over the parts of each item."""
    torch.manual_seed(0)
    inputs: dict[Modality, Tensor] = {m: torch.randn(rows, 2, space.encoder(m).feature_dim) for m in space.modalities}
    masks: dict[Modality, Tensor] = {m: torch.ones(rows, 2, dtype=torch.bool) for m in space.modalities}
    return Batch(inputs, masks, torch.arange(rows), input_kinds=dict.fromkeys(space.modalities, "pooled"))


def measure(side: str, rows: int) -> dict[str, float]:
    """Measure the seconds and megabytes of a step with one implementation."""
    recipe = Recipe.load("clap", OVERRIDES).restrict_to(["image", "text"])
    torch.manual_seed(0)
    space, objectives = Space(recipe).train(), ObjectiveSet(recipe)
    optimizer, batch = build_optimizer(recipe, space, objectives), make_batch(space, rows)

    def ours() -> None:
        take_step(space, objectives, optimizer, batch, recipe.training)

    scale = torch.nn.Parameter(torch.tensor(2.66))
    plain_optimizer = torch.optim.AdamW([*space.heads.parameters(), scale], lr=recipe.training.learning_rate)

    def plain() -> None:
        image, text = (F.normalize(space.heads[m](batch.inputs[m][:, 0]), dim=1) for m in ("image", "text"))
        logits: Tensor = scale.exp() * image @ text.T
        targets = torch.arange(rows)
        loss = (F.cross_entropy(logits, targets) + F.cross_entropy(logits.T, targets)) / 2
        plain_optimizer.zero_grad()
        loss.backward()
        plain_optimizer.step()

    work = ours if side == "ours" else plain
    memory = peak_over_baseline(work)
    times = []
    for _ in range(STEPS):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return {"seconds": statistics.median(times), "least": min(times), "most": max(times), "megabytes": memory}


def main() -> None:
    """Compare both implementations at the smaller and at the large batch size."""
    for rows in (COMPARED_BATCH, LARGE_BATCH):
        results = {}
        for side in ("ours", "plain"):
            command = [sys.executable, "-m", "bench.large_batch", side, str(rows)]
            results[side] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            result = results[side]
            print(
                f"{rows:>6} pairs, {side:5}: {result['seconds']:.2f} s per step "
                f"({result['least']:.2f}–{result['most']:.2f}), "
                f"{rows / result['seconds']:.0f} pairs/s, peak {result['megabytes']:.0f} MB",
                flush=True,
            )
        time_ratio, memory_ratio = (results["ours"][k] / results["plain"][k] for k in ("seconds", "megabytes"))
        print(f"{rows:>6} pairs, ours ÷ plain: time {time_ratio:.2f}×, memory {memory_ratio:.3f}×", flush=True)


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], int(sys.argv[2]))))
