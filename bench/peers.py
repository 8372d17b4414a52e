"""Peer implementations. `make bench` installs their packages for the benchmarks only."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

import torch
import torch.nn.functional as F
from torch import Tensor


def load_open_clip_loss() -> ModuleType:
    """Load only loss.py of open_clip: the package needs torchvision, its losses do not."""
    spec = importlib.util.find_spec("open_clip")
    if spec is None or not spec.submodule_search_locations:
        sys.exit("open_clip_torch is not installed; run `make bench`")
    path = f"{spec.submodule_search_locations[0]}/loss.py"
    loss_spec = importlib.util.spec_from_file_location("open_clip_loss", path)
    assert loss_spec
    assert loss_spec.loader
    module = importlib.util.module_from_spec(loss_spec)
    loss_spec.loader.exec_module(module)
    return module


def import_peer(name: str) -> ModuleType:
    """Import a module of a peer, or exit with a message."""
    try:
        return importlib.import_module(name)
    except ImportError:
        sys.exit(f"{name} is not installed; run `make bench`")


def matchmap_loop(images: Tensor, audio: Tensor) -> Tensor:
    """MISA by the double loop over pairs: (N, R, D) and (M, T, D) to (N, M)."""
    return torch.stack([torch.stack([(image @ clip.T).amax(dim=0).mean() for clip in audio]) for image in images])


def word_region_loop(images: Tensor, texts: Tensor, attention: float, sharpness: float) -> Tensor:
    """Word–region scores by a loop over captions, each against the whole batch: (B, R, D), (B, T, D) to (B, B)."""
    columns = []
    for caption in texts:
        tokens = caption.unsqueeze(0).repeat(len(images), 1, 1)  # (B, T, D)
        scores = torch.bmm(images, tokens.transpose(1, 2))  # (B, R, T)
        weights = torch.softmax(attention * torch.softmax(scores, dim=2).transpose(1, 2), dim=2)  # (B, T, R)
        context = torch.bmm(weights, images)  # (B, T, D)
        cosine = F.cosine_similarity(context, tokens, dim=2)  # (B, T)
        columns.append(torch.log(torch.exp(sharpness * cosine).sum(dim=1)))
    return torch.stack(columns, dim=1)
