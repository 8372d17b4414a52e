"""The environment of a run: versions, hardware and code revision, but no host name, user name or path."""

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
PACKAGE_FOLDER = Path(__file__).parent.parent


def describe_environment(world_size: int, device: torch.device) -> dict[str, Any]:
    """Return versions, hardware and code revision as plain data."""
    return {
        "triptych": __version__,
        "code_revision": describe_code_revision(),
        "python": platform.python_version(),
        "packages": {name: package_version for name in PACKAGES if (package_version := _find_version(name))},
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _read_processor_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "omp_wait_policy": os.environ.get("OMP_WAIT_POLICY", "not set"),
        "processes": world_size,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
    }


def describe_code_revision() -> str:
    """Return the git commit of this package and whether it has uncommitted changes, or "installed package"."""
    try:
        tracked = _run_git("ls-files", "--error-unmatch", "__init__.py")
        commit = _run_git("rev-parse", "HEAD")
        changes = _run_git("status", "--porcelain", "--", ".")
    except (OSError, subprocess.SubprocessError):
        return "installed package"
    return f"{commit}{', changed since' if changes else ''}" if tracked else "installed package"


def _run_git(*arguments: str) -> str:
    command = ["git", "-C", str(PACKAGE_FOLDER), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=10).stdout.strip()  # noqa: S603


def _find_version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _read_processor_name() -> str:
    """Return the model name of the processor, if the system reports it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")
