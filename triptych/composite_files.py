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
from triptych.composite import CALIBRATED_PAIRS, NON_TEXT, SEPARATOR, Calibration, join_spaces
from triptych.errors import CheckpointError
from triptych.files import atomic_write
from triptych.space import Space
from triptych.spaces.presence import BRIDGE_FILE, split_names

HEADER_KEY, FORMAT_VERSION = "triptych", "bridge-1"
BRIDGE_TENSORS = ("map_ab", "map_ba", "centre_a", "centre_b")
CALIBRATION_TENSORS = ("score_mean", "score_std")


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
        space = join_spaces(members, _read_bridge(self, members), _read_calibration(self))
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
        file = _find_bridge_file(location)
        return _read_spec(file) if file else None
    names = split_names(str(path))
    if len(names) < 2:
        return None
    return CompositeSpec(names)


def _find_bridge_file(location: Path) -> Path | None:
    file = location / BRIDGE_FILE if location.is_dir() else location
    return file if file.name == BRIDGE_FILE and file.is_file() else None


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
    for name in names:  # a member that is composite could contain this bridge
        if len(split_names(name)) > 1 or _find_bridge_file(Path(name).expanduser()):
            raise CheckpointError(f"{file}: the member {name} is a composite space; run `triptych bridge` again")
    return CompositeSpec(names, file.parent, fingerprints, tensors, report)


def _read_bridge(spec: CompositeSpec, members: Sequence[Space]) -> Bridge | None:
    if not spec.tensors:
        return None
    num_columns = [sum(m.recipe.space.embed_dim for m in members if m.supports(modality)) for modality in NON_TEXT]
    a, b = num_columns
    shapes = {"map_ab": (a, b), "map_ba": (b, a), "centre_a": (a,), "centre_b": (b,)}
    if not set(spec.tensors).isdisjoint(CALIBRATION_TENSORS):
        shapes |= dict.fromkeys(CALIBRATION_TENSORS, (len(CALIBRATED_PAIRS),))
    actual = {name: tuple(x.shape) for name, x in spec.tensors.items()}
    if actual != shapes:
        raise _damage_error(spec, f"tensors of shapes {actual}; members of these dimensions need {shapes}")
    if any(x.dtype != torch.float32 or not torch.isfinite(x).all() for x in spec.tensors.values()):
        raise _damage_error(spec, "tensors that are not float32, or NaN")
    return Bridge(*(spec.tensors[name] for name in BRIDGE_TENSORS))


def _read_calibration(spec: CompositeSpec) -> Calibration | None:
    if CALIBRATION_TENSORS[0] not in spec.tensors:
        return None
    mean, std = (spec.tensors[name] for name in CALIBRATION_TENSORS)
    if not (std > 0).all():
        raise _damage_error(spec, "a standard deviation that is not positive")
    return Calibration(mean, std)


def _damage_error(spec: CompositeSpec, problem: str) -> CheckpointError:
    return CheckpointError(f"{spec}: the bridge is damaged ({problem}); run `triptych bridge` again")
