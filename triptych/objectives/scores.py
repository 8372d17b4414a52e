"""Check and convert the score matrices that objectives receive."""

from __future__ import annotations

import torch
from torch import Tensor

from triptych.errors import InputError


def upcast_half(x: Tensor) -> Tensor:
    """Convert half precision to float32, because half precision is inaccurate in log-sum-exps and differences."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def check_scores(scores: Tensor, mask: Tensor, mask_name: str = "positive_mask", square: bool = False) -> None:
    """Raise InputError unless the scores are a non-empty matrix and the mask is a bool tensor of the same shape."""
    is_matrix = scores.dim() == 2 and scores.numel() > 0 and (not square or scores.shape[0] == scores.shape[1])
    if not is_matrix or mask.shape != scores.shape or mask.dtype != torch.bool:
        actual = f"scores {tuple(scores.shape)}, {mask_name} {tuple(mask.shape)} {mask.dtype}"
        raise InputError(f"{actual}; need {'(N, N)' if square else '(N, M)'} for both, none empty, and a bool mask")
