"""The user's configuration file."""

import pytest

from triptych.errors import UsageError
from triptych.spaces.user_config import (
    clear_configured_space,
    config_path,
    read_configured_space,
    write_configured_space,
)


def test_the_space_is_written_read_and_cleared():
    assert read_configured_space() is None
    path = write_configured_space('hf:a/b?dtype="x"')
    assert path == config_path()
    assert read_configured_space() == ('hf:a/b?dtype="x"', str(path))
    assert clear_configured_space()
    assert not clear_configured_space()
    assert read_configured_space() is None
    assert list(path.parent.iterdir()) == []


def test_the_environment_variable_comes_first(monkeypatch):
    write_configured_space("starter")
    monkeypatch.setenv("TRIPTYCH_SPACE", " runs/mine ")
    assert read_configured_space() == ("runs/mine", "TRIPTYCH_SPACE")
    monkeypatch.setenv("TRIPTYCH_SPACE", "")
    assert read_configured_space() == ("starter", str(config_path()))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"space = ", "cannot be read as TOML"),
        (b"\xff\xfe\x00", "cannot be read as TOML"),
        (b"space = " + b"[" * 10_000, "cannot be read as TOML"),
        (b"spaec = 'starter'", "key 'spaec' is unknown; known: space; did you mean 'space'?"),
        (b"space = 3", "space = 3: must be the name of a space"),
        (b"space = ''", "space = '': must be the name of a space"),
    ],
)
def test_a_broken_file_is_one_clear_error_and_is_repaired_by_use(content, message):
    path = write_configured_space("starter")
    path.write_bytes(content)
    with pytest.raises(UsageError) as error:
        read_configured_space()
    assert str(error.value).startswith(f"{path}: {message}")
    assert "run: triptych spaces use NAME" in str(error.value)
    write_configured_space("starter")
    assert read_configured_space() == ("starter", str(path))


def test_a_file_without_a_space_counts_as_no_choice():
    write_configured_space("starter").write_text("")
    assert read_configured_space() is None
