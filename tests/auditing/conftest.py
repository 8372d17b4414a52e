"""A small synthetic manifest with injected noise, and its audit."""

import csv
from pathlib import Path

import pytest

from triptych.auditing.audit import AuditResult, audit
from triptych.data.label_noise import read_swaps
from triptych.data.noise_injection import inject_noise, swaps_path
from triptych.data.synthetic import SyntheticConfig, generate
from triptych.encoders.efficientnet_lite import EfficientNetLite0
from triptych.encoders.minilm import MiniLM

# Like recipes/audit.toml, but smaller and with plain InfoNCE: fast on a few hundred rows.
RECIPE = """
name = "small"
[space]
embed_dim = 64
[space.encoders]
image = { name = "efficientnet_lite0" }
text = { name = "minilm" }
[[objectives]]
name = "infonce"
pairs = [["image", "text"]]
[training]
epochs = 38
batch_size = 64
learning_rate = 3e-3
"""
NOISE_RATE = 0.2


@pytest.fixture(scope="session")
def small_recipe(tmp_path_factory) -> Path:
    """The recipe of a fast audit."""
    for encoder in (EfficientNetLite0, MiniLM):
        if encoder.unavailable_reason():
            pytest.skip(f"{encoder.__name__}: {encoder.unavailable_reason()}")
    path = tmp_path_factory.mktemp("recipe") / "small.toml"
    path.write_text(RECIPE)
    return path


@pytest.fixture(scope="session")
def noisy_manifest(tmp_path_factory) -> Path:
    """A manifest of 200 images with captions; a fifth of the rows have the captions of another row."""
    synthetic = generate(
        SyntheticConfig(scenes=200, captions=2, max_objects=1, image_size=48, seconds=1.0),
        tmp_path_factory.mktemp("audited") / "w",
    )
    with synthetic.open(newline="") as file:
        rows = list(csv.DictReader(file))
    clean = synthetic.with_name("clean.csv")
    with clean.open("w", newline="") as file:
        columns = ["id", "image", "caption_1", "caption_2"]
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    return inject_noise(clean, synthetic.with_name("noisy.csv"), NOISE_RATE, show_progress=False)[0].path


@pytest.fixture(scope="session")
def swapped_ids(noisy_manifest) -> set[str]:
    """The ids of the rows that were swapped."""
    return {swap.id for swap in read_swaps(swaps_path(noisy_manifest))}


@pytest.fixture(scope="session")
def audit_result(noisy_manifest, small_recipe) -> AuditResult:
    """The audit of that manifest, in a folder beside it."""
    return audit(
        noisy_manifest, noisy_manifest.parent / "audit", num_folds=2, recipe=str(small_recipe), show_progress=False
    )
