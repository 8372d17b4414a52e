"""The user's configuration file, which names the default space."""

import os
import tomllib
from pathlib import Path

import platformdirs
import tomli_w

from triptych.errors import UsageError, describe_unknown
from triptych.files import write_text

SPACE_VARIABLE = "TRIPTYCH_SPACE"
USE_COMMAND = "triptych spaces use NAME"
KEYS = ("space",)


def config_path() -> Path:
    """Return the path of the configuration file: `triptych/config.toml` in the system's folder for configurations."""
    return platformdirs.user_config_path("triptych", appauthor=False) / "config.toml"


def read_configured_space() -> tuple[str, str] | None:
    """Return the space that the user has chosen, and the variable or file that names it; None if there is none.

    The environment variable TRIPTYCH_SPACE comes first, then the configuration file.
    """
    if name := os.environ.get(SPACE_VARIABLE, "").strip():
        return name, SPACE_VARIABLE
    path = config_path()
    remedy = f"correct or delete the file, or run: {USE_COMMAND}"
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:  # UnicodeDecodeError and TOMLDecodeError are ValueErrors
        raise UsageError(f"{path}: cannot be read as TOML ({error}); {remedy}") from error
    for key in table:
        if key not in KEYS:
            raise UsageError(f"{path}: {describe_unknown('key', key, KEYS)}; {remedy}")
    name = table.get("space")
    if name is None:
        return None
    if not isinstance(name, str) or not name.strip():
        raise UsageError(f"{path}: space = {name!r}: must be the name of a space; {remedy}")
    return name.strip(), str(path)


def write_configured_space(name: str) -> Path:
    """Make a space the default of all later commands, and return the path of the configuration file."""
    write_text(config_path(), tomli_w.dumps({"space": name}))
    return config_path()


def clear_configured_space() -> bool:
    """Delete the configuration file. Return False if there was none."""
    exists = config_path().is_file()
    config_path().unlink(missing_ok=True)
    return exists
