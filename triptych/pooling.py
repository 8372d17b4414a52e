"""Pool the part vectors of items, and map embeddings onto a geometry."""

import torch
import torch.nn.functional as F
from torch import Tensor

from triptych.recipe import Geometry


def masked_mean(parts: Tensor, mask: Tensor) -> Tensor:
    """Return the mean over the parts that are not padding: (N, P, W) becomes (N, W)."""
    weights = mask.to(parts.dtype).unsqueeze(2)
    return (parts * weights).sum(dim=1) / weights.sum(dim=1).clamp_min(1)


def masked_max(parts: Tensor, mask: Tensor) -> Tensor:
    """Return the elementwise maximum over the parts that are not padding: (N, P, W) becomes (N, W)."""
    return parts.masked_fill(~mask.unsqueeze(2), -torch.inf).amax(dim=1)


def apply_geometry(geometry: Geometry, z: Tensor) -> Tensor:
    """Map vectors z onto a geometry: z/|z| for sphere, z/max(1, |z|) for ball, unchanged z for free."""
    if geometry == "sphere":
        return F.normalize(z, dim=-1)
    if geometry == "ball":
        return z / z.norm(dim=-1, keepdim=True).clamp_min(1)
    return z
