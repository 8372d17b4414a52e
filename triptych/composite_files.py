"""The names and the files of composite spaces: runs/a+runs/b, and the folders that `triptych bridge` writes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as pack_tensors
from torch import Tensor

from triptych.bridge import Bridge
from triptych.composite import SEPARATOR, Calibration, join_spaces
from triptych.errors import CheckpointError
from triptych.files import atomic_write
from triptych.space import Space
from triptych.spaces.presence import BRIDGE_FILE, split_names

HEADER_KEY, FORMAT_VERSION = "triptych", "bridge-1"
BRIDGE_TENSORS = ("map_ab", "map_ba", "centre_a", "centre_b")


@dataclass(frozen=True)
class CompositeSpec:
    """The names of the members of a composite space. A folder of `triptych bridge` also has a bridge."""

    members: tuple[str, ...]
    folder: Path | None = None
    fingerprints: tuple[str, ...] = ()  # of the members when the bridge was fitted
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    report: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return str(self.folder.resolve()) if self.folder else SEPARATOR.join(self.members)

    def check_fingerprints(self, fingerprints: Sequence[str]) -> None:
        """Raise CheckpointError if a member has changed since the bridge was fitted."""
        for name, old, new in zip(self.members, self.fingerprints, fingerprints, strict=False):
            if old != new:
                problem = f"{self}: the member {name} has changed since the bridge was fitted"
                raise CheckpointError(f"{problem}; run `triptych bridge` again")

    def compute_fingerprint(self, fingerprints: Sequence[str]) -> str:
        """Return a hash of the members' fingerprints and of the bridge."""
        digest = hashlib.sha256(json.dumps(list(fingerprints)).encode())
        digest.update(pack_tensors({name: self.tensors[name] for name in sorted(self.tensors)}))
        return digest.hexdigest()[:16]

    def join(self, members: Sequence[Space]) -> Space:
        """Return the composite space of the loaded members."""
        space = join_spaces(members, _read_bridge(self), _read_calibration(self))
        space.name_or_path = str(self) if self.folder else SEPARATOR.join(str(m.name_or_path) for m in members)
        space.history = {"bridge": dict(self.report)} if self.folder else {}
        return space

    def save(self, folder: Path) -> None:
        """Write the bridge to a folder, which `triptych.load` then reads."""
        header = {
            "format_version": FORMAT_VERSION,
            "members": self.members,
            "fingerprints": self.fingerprints,
            "report": self.report,
        }
        tensors = {name: value.contiguous() for name, value in self.tensors.items()}
        with atomic_write(folder / BRIDGE_FILE) as temp_path:
            temp_path.write_bytes(pack_tensors(tensors, {HEADER_KEY: json.dumps(header, sort_keys=True)}))


def find_composite(path: str | Path) -> CompositeSpec | None:
    """Return the composite space with a name such as runs/a+runs/b, or in a folder of `triptych bridge`, or None.

    A path that exists and contains a plus sign is a path.
    """
    location = Path(path).expanduser()
    if location.exists():
        file = location / BRIDGE_FILE if location.is_dir() else location
        return _read_spec(file) if file.name == BRIDGE_FILE and file.is_file() else None
    names = split_names(str(path))
    if len(names) < 2:
        return None
    return CompositeSpec(names)


def _read_spec(file: Path) -> CompositeSpec:
    try:
        with safe_open(file, framework="pt") as content:
            header = json.loads((content.metadata() or {}).get(HEADER_KEY, "{}"))
            tensors = {name: content.get_tensor(name).clone() for name in content.keys()}  # noqa: SIM118 - not a dict
        if header["format_version"] != FORMAT_VERSION:
            raise CheckpointError(f"{file}: written by another version of triptych; run `triptych bridge` again")
        names, fingerprints = tuple(map(str, header["members"])), tuple(map(str, header["fingerprints"]))
        report = dict(header["report"])
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{file}: cannot be read as a bridge ({error}); run `triptych bridge` again") from error
    if len(names) < 2 or len(fingerprints) != len(names):
        raise CheckpointError(f"{file}: names {len(names)} members; need two or more; run `triptych bridge` again")
    return CompositeSpec(names, file.parent, fingerprints, tensors, report)


def _read_bridge(spec: CompositeSpec) -> Bridge | None:
    if not spec.tensors:
        return None
    tensors = [spec.tensors[name] for name in BRIDGE_TENSORS if name in spec.tensors]
    shapes = [tuple(x.shape) for x in tensors]
    is_complete = len(shapes) == len(BRIDGE_TENSORS) and shapes == [
        shapes[0],
        shapes[0][::-1],
        *((n,) for n in shapes[0]),
    ]
    if not is_complete or not all(torch.isfinite(x).all() for x in spec.tensors.values()):
        problem = f"the bridge is damaged (tensors of shapes {shapes}, or NaN)"
        raise CheckpointError(f"{spec}: {problem}; run `triptych bridge` again")
    return Bridge(*tensors)


def _read_calibration(spec: CompositeSpec) -> Calibration | None:
    if "score_mean" not in spec.tensors:
        return None
    return Calibration(spec.tensors["score_mean"], spec.tensors["score_std"])
