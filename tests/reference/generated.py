"""Generated cases of known families from naive loops, with other shapes, seeds and constants."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np

Arrays = dict[str, np.ndarray]


def write_case(folder: Path, name: str, config: dict, inputs: Arrays, outputs: dict, gradients: Arrays) -> None:
    """Write one case, with a tolerance that naive formulas reach."""
    arrays = {f"in__{k}": v for k, v in inputs.items()} | {f"out__{k}": np.asarray(v) for k, v in outputs.items()}
    arrays |= {f"grad__{k}": v for k, v in gradients.items()}
    np.savez(folder / f"{name}.npz", **arrays)  # pyright: ignore[reportArgumentType]
    (folder / f"{name}.json").write_text(json.dumps({"name": name, "config": config, "tolerance_rtol": 1e-8}))


def numerical_gradients(loss: Callable[[Arrays], float], inputs: Arrays, *names: str) -> Arrays:
    """Return central differences of the loss with respect to the named inputs."""
    gradients = {}
    for name in names:
        gradient = np.zeros_like(inputs[name])
        for index in np.ndindex(gradient.shape):
            losses = []
            for step in (1e-6, -1e-6):
                shifted = inputs[name].copy()
                shifted[index] += step
                losses.append(loss({**inputs, name: shifted}))
            gradient[index] = (losses[0] - losses[1]) / 2e-6
        gradients[name] = gradient
    return gradients


def normalise(x: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x * x).sum(axis=-1, keepdims=True))


def generate_symmetric(folder: Path, rng: np.random.Generator) -> None:
    n, d = 7, 4
    inputs = {"audio_raw": rng.normal(size=(n, d)), "text_raw": rng.normal(size=(n, d)), "log_scale": np.array(1.7)}

    def logits(values: Arrays) -> np.ndarray:
        return np.exp(values["log_scale"]) * normalise(values["audio_raw"]) @ normalise(values["text_raw"]).T

    def one_way(scores: np.ndarray) -> float:
        return sum(math.log(sum(math.exp(s) for s in scores[i])) - scores[i, i] for i in range(n)) / n

    def loss(values: Arrays) -> float:
        return (one_way(logits(values)) + one_way(logits(values).T)) / 2

    outputs = {
        "loss": loss(inputs),
        "loss_audio_to_text": one_way(logits(inputs)),
        "loss_text_to_audio": one_way(logits(inputs).T),
        "logits_per_audio": logits(inputs),
    }
    write_case(folder, "clip_symmetric_z", {}, inputs, outputs, numerical_gradients(loss, inputs, *inputs))


def generate_hardest_triplet(folder: Path, rng: np.random.Generator) -> None:
    n, margin = 6, 0.35
    labels = np.array([3.0, 1.0, 3.0, 2.0, 5.0, 1.0])
    inputs = {"audio_raw": rng.normal(size=(n, 3)), "text_raw": rng.normal(size=(n, 3)), "labels": labels}

    def loss(values: Arrays) -> float:
        s = normalise(values["audio_raw"]) @ normalise(values["text_raw"]).T
        total = 0.0
        for i in range(n):
            negatives = [j for j in range(n) if labels[j] != labels[i]]
            total += max(max(0.0, margin + s[i, j] - s[i, i]) for j in negatives)
            total += max(max(0.0, margin + s[j, i] - s[i, i]) for j in negatives)
        return total / n

    cosine = normalise(inputs["audio_raw"]) @ normalise(inputs["text_raw"]).T
    gradients = numerical_gradients(loss, inputs, "audio_raw", "text_raw")
    inputs["margin"] = np.array(margin)
    write_case(folder, "mei_triplet_max_z", {}, inputs, {"loss": loss(inputs), "cosine": cosine}, gradients)


def generate_plan(folder: Path, rng: np.random.Generator) -> None:
    n, m, epsilon = 3, 5, 0.17
    a, b, target = rng.dirichlet(np.ones(n)), rng.dirichlet(np.ones(m)), rng.dirichlet(np.ones(n * m)).reshape(n, m)
    inputs = {"a": a, "b": b, "target": target, "cost": rng.uniform(size=(n, m))}

    def sinkhorn(cost: np.ndarray, rounds: int) -> np.ndarray:
        kernel, u, v = np.exp(-cost / epsilon), np.ones(n) / n, np.ones(m)
        for _ in range(rounds):
            v = b / (kernel.T @ u)
            u = a / (kernel @ v)
        return u[:, None] * kernel * v

    def loss(values: Arrays) -> float:
        return -float((target * np.log(sinkhorn(values["cost"], 3000))).sum())

    converged = sinkhorn(inputs["cost"], 3000)
    outputs = {
        "plan": converged,
        "plan_10_iterations": sinkhorn(inputs["cost"], 10),
        "loss": loss(inputs),
        "transport_cost": (converged * inputs["cost"]).sum(),
        "iterations": 3000,
    }
    gradients = numerical_gradients(loss, inputs, "cost")
    write_case(folder, "pot_sinkhorn_z", {"eps": epsilon}, inputs, outputs, gradients)


def generate_captioned(folder: Path, rng: np.random.Generator) -> None:
    n, captions_per_audio = 9, 3
    audio = rng.normal(size=(n, 4))
    captions = np.repeat(audio, captions_per_audio, axis=0) + 1.2 * rng.normal(size=(n * captions_per_audio, 4))
    scores, outputs = normalise(audio) @ normalise(captions).T, {}
    for name, side in (("a2t", scores), ("t2a", scores.T)):
        first, precision = [], []
        for i, row in enumerate(side):
            order = np.argsort(-row).tolist()
            positives = [
                j
                for j in range(len(row))
                if (j // captions_per_audio == i if name == "a2t" else i // captions_per_audio == j)
            ]
            ranks = sorted(order.index(j) for j in positives)
            first.append(ranks[0])
            precision.append(sum((k + 1) / (r + 1) for k, r in enumerate(ranks) if r < 10) / len(positives))
        ranks0 = np.array(first, dtype=float)
        outputs |= {f"{name}_R{k}": 100 * (ranks0 < k).mean() for k in (1, 5, 10, 50)}
        outputs |= {f"{name}_medR": np.floor(np.median(ranks0)) + 1, f"{name}_meanR": ranks0.mean() + 1}
        outputs |= {f"{name}_mAP10": 100 * np.mean(precision), f"{name}_ranks0": ranks0}
    write_case(folder, "metrics_5cap_z", {}, {"audio": audio, "captions": captions}, outputs, {})


def generate_distillation(folder: Path, rng: np.random.Generator) -> None:
    n, classes, delta = 4, 5, 0.3
    logits = ("teacher_logits", "student_image_logits", "student_other_logits")
    inputs = {name: rng.normal(size=(n, classes)) * 2 for name in logits}
    inputs |= {"v": rng.normal(size=(n, 3)), "x": rng.normal(size=(n, 3)), "delta": np.array(delta)}

    def divergence(values: Arrays, student: str) -> np.ndarray:
        g, f = (np.exp(values[k]) / np.exp(values[k]).sum(axis=1, keepdims=True) for k in ("teacher_logits", student))
        return np.array([sum(p * math.log(p / q) for p, q in zip(g[i], f[i], strict=True)) for i in range(n)])

    def loss(values: Arrays) -> float:
        both = divergence(values, "student_image_logits") + divergence(values, "student_other_logits")
        return both.mean() / 2

    image, other = divergence(inputs, "student_image_logits"), divergence(inputs, "student_other_logits")
    s = normalise(inputs["v"]) @ normalise(inputs["x"]).T
    ranking = sum(max(0.0, delta + s[i, j] - s[i, i]) for i in range(n) for j in range(n) if i != j)
    outputs = {"kl_image": image, "kl_other": other, "per_pair": (image + other) / 2}
    outputs |= {"mean": loss(inputs), "sum": n * loss(inputs), "total": loss(inputs) + ranking}
    write_case(folder, "shre_kd_z", {}, inputs, outputs, numerical_gradients(loss, inputs, *logits[1:]))


GENERATORS = (generate_symmetric, generate_hardest_triplet, generate_plan, generate_captioned, generate_distillation)
