"""Pretrained encoders end to end, from files and texts to embeddings, against plain implementations."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.measure import Times, compare
from bench.real_data import find_dataset, read_flickr8k_captions
from triptych.data.features import BATCH_SIZE, encode_blocks
from triptych.encoders import minilm
from triptych.encoders.efficientnet_lite import EPSILON, LITE0, EfficientNetLite0
from triptych.encoders.minilm import MiniLM
from triptych.interfaces import Encoder, Source

NUM_IMAGES, NUM_CAPTIONS = 500, 5000
WORKERS = 2
NORM_BUFFERS = ("running_mean", "running_var", "weight", "bias")
STRIDED_BLOCKS = {1, 3, 5, 11}  # the blocks of EfficientNet-lite0 with stride 2


def embed(encoder: Encoder, sources: list[Source]) -> Tensor:
    """Return the normalised mean of the parts of each source, computed as for the cache."""
    means = {s: parts.mean(dim=0) for block, _ in encode_blocks(encoder, sources, WORKERS) for s, parts in block}
    return F.normalize(torch.stack([means[source] for source in sources]), dim=1)


def build_published_network() -> Callable[[Tensor], Tensor]:
    """Build EfficientNet-lite0 as published: convolution, batch norm, ReLU6; (N, 3, 224, 224) to (N, 1280)."""
    path = LITE0.weights.find()
    assert path is not None
    weights: dict[str, Tensor] = torch.load(path, weights_only=True, map_location="cpu")

    def layer(x: Tensor, conv: str, norm: str, stride: int = 1) -> Tensor:
        weight = weights[f"{conv}.weight"]
        total = max(0, (-(-x.shape[2] // stride) - 1) * stride + weight.shape[2] - x.shape[2])
        x = F.pad(x, (total // 2, total - total // 2) * 2) if total else x
        x = F.conv2d(x, weight, stride=stride, groups=x.shape[1] if weight.shape[1] == 1 else 1)
        mean, variance, scale, shift = (weights[f"{norm}.{buffer}"] for buffer in NORM_BUFFERS)
        return F.batch_norm(x, mean, variance, scale, shift, eps=EPSILON)

    def network(x: Tensor) -> Tensor:
        x = F.relu6(layer(x, "_conv_stem", "_bn0", 2))
        for block in range(16):
            name, residual = f"_blocks.{block}", x
            x = F.relu6(layer(x, f"{name}._expand_conv", f"{name}._bn0")) if block else x
            x = F.relu6(layer(x, f"{name}._depthwise_conv", f"{name}._bn1", 2 if block in STRIDED_BLOCKS else 1))
            x = layer(x, f"{name}._project_conv", f"{name}._bn2")
            x = x + residual if x.shape == residual.shape else x
        return F.relu6(layer(x, "_conv_head", "_bn1")).mean(dim=(2, 3))

    return network


def bench_images(paths: list[Path]) -> None:
    """Compare triptych's EfficientNet-lite0 with the published network in a loop over image files."""
    encoder, network = EfficientNetLite0().eval(), build_published_network()
    sources = [Source("image", path) for path in paths]

    @torch.inference_mode()
    def loop() -> Tensor:
        pixels = (encoder.prepare(source).movedim(2, 0).unsqueeze(0) for source in sources)
        return torch.cat([F.normalize(network((p.contiguous() - 127.0) / 128), dim=1) for p in pixels])

    drift = (embed(encoder, sources) - loop()).abs().max()
    assert drift < 1e-5, f"results differ by {drift}"
    times = compare(lambda: embed(encoder, sources), loop, repeats=3)
    report(f"{len(paths)} images, efficientnet_lite0", "loop over files", times, len(paths), 1.5)


def bench_captions(texts: list[str]) -> None:
    """Compare MiniLM over captions with sentence-transformers at the same batch size."""
    from sentence_transformers import SentenceTransformer

    path = minilm.WEIGHTS.find()
    assert path is not None
    encoder, peer = MiniLM().eval(), SentenceTransformer(str(path.parent), device="cpu")
    sources = [Source("text", text) for text in texts]

    def theirs() -> Tensor:
        return peer.encode(texts, batch_size=BATCH_SIZE, convert_to_tensor=True, show_progress_bar=False)

    drift = (embed(encoder, sources) - theirs()).abs().max()
    assert drift < 1e-5, f"results differ by {drift}"
    times = compare(lambda: embed(encoder, sources), theirs, repeats=3)
    report(f"{len(texts)} captions, minilm", "sentence-transformers", times, len(texts), 1.0)


def report(title: str, peer: str, times: Times, items: int, target: float) -> None:
    """Print the items per second of triptych and of the peer, and the speed-up."""
    ours, theirs = (items / sorted(side)[len(side) // 2] for side in (times.ours, times.theirs))
    high, low = (1 / ratio for ratio in times.spread)
    print(
        f"{title}: {ours:.0f}/s; {peer}: {theirs:.0f}/s; {1 / times.ratio:.2f}× ({low:.2f}–{high:.2f}), "
        f"target {target:g}×",
        flush=True,
    )


def main() -> None:
    """Run both benchmarks, if data, weights and the peer are available."""
    folder = find_dataset("flickr8k")
    unavailable = [reason for cls in (EfficientNetLite0, MiniLM) if (reason := cls.unavailable_reason())]
    if folder is None or unavailable:
        print(
            unavailable[0]
            if unavailable
            else "flickr8k not available: set TRIPTYCH_DATA to the folder that contains it"
        )
        return
    captions_by_image = read_flickr8k_captions(folder)
    bench_images(list(captions_by_image)[:NUM_IMAGES])
    if importlib.util.find_spec("sentence_transformers"):
        bench_captions(
            [caption for image_captions in captions_by_image.values() for caption in image_captions][:NUM_CAPTIONS]
        )
