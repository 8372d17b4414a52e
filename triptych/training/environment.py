"""What a run was made with: versions, machine, the state of the code. Nothing that tells whose machine it was."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from triptych import __version__

PACKAGES = ("torch", "numpy", "safetensors", "tokenizers", "transformers", "pillow", "soundfile", "soxr", "av")
HERE = Path(__file__).parent.parent


def environment(processes: int, device: torch.device) -> dict[str, Any]:
    """Versions, machine and code, as plain data."""
    return {
        "triptych": __version__,
        "code": code_state(),
        "python": platform.python_version(),
        "packages": {name: found for name in PACKAGES if (found := _version(name))},
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "wait_policy": os.environ.get("OMP_WAIT_POLICY", "not set"),  # of threads that wait for each other
        "processes": processes,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
    }


def code_state() -> str:
    """The commit our code stands at, and whether it was changed since; without git, that it is an installed package."""
    try:
        tracked = _git("ls-files", "--error-unmatch", "__init__.py")
        commit = _git("rev-parse", "HEAD")
        changed = _git("status", "--porcelain", "--", ".")
    except (OSError, subprocess.SubprocessError):
        return "installed package"
    return f"{commit}{', changed since' if changed else ''}" if tracked else "installed package"


def _git(*words: str) -> str:
    command = ["git", "-C", str(HERE), *words]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=10).stdout.strip()  # noqa: S603


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    """The kind of processor, where the system says."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")
