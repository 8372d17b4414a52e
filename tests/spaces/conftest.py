"""Fixtures: a home folder without configuration, and an empty cache of the hub."""

import pytest
from huggingface_hub import constants


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """A new configuration folder, and no variable that names a space."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("TRIPTYCH_SPACE", raising=False)
    return tmp_path


@pytest.fixture(autouse=True)
def hub_cache(tmp_path, monkeypatch):
    """An empty cache of the hub, which is offline."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return tmp_path / "hub"
