"""The command line as a whole: imports, help, version, usage errors."""

import os
import shutil
import subprocess
import sys
import warnings

import pytest

from tests.app.cli.run_cli import triptych
from triptych import __version__
from triptych.app import cli
from triptych.app.cli import COMMANDS

pytestmark = pytest.mark.slow


def test_help_and_import_do_not_load_torch():
    for code in ("import triptych", "from triptych.app.cli import app", "import triptych.data.manifest"):
        check = f"{code}; import sys; sys.exit('torch' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0, code


def test_help_does_not_search_for_plugins():
    code = """
import contextlib, sys
from triptych.app.cli import app
with contextlib.suppress(SystemExit):
    app(["--help"])
sys.exit("triptych.plugins" in sys.modules or "importlib.metadata" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False, stdout=subprocess.DEVNULL).returncode == 0


@pytest.mark.parametrize(("option", "printed"), [("--help", "Usage"), ("--version", f"triptych {__version__}")])
def test_help_and_version_load_only_what_they_print_with(option, printed):
    """Few imports keep the start below half a second (`python -m bench startup`) on any machine."""
    code = f"""
import contextlib, runpy, sys
sys.argv = ["triptych", "{option}"]
with contextlib.suppress(SystemExit):
    runpy.run_module("triptych", run_name="__main__")
print(*{{name.partition(".")[0] for name in sys.modules}} - set(sys.stdlib_module_names))
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert printed in result.stdout
    loaded = {name for name in result.stdout.splitlines()[-1].split() if not name.startswith("_")}
    printing = {
        "annotated_doc",
        "attr",
        "attrs",
        "click",
        "markdown_it",
        "mdurl",
        "pygments",
        "rich",
        "shellingham",
        "typer",
    }
    # If pydantic is installed, typer parses option values with it.
    parsing = {"annotated_types", "pydantic", "pydantic_core", "typing_extensions", "typing_inspection"}
    assert loaded <= {"triptych", "site", "sitecustomize", *printing, *(parsing if option == "--version" else ())}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_examples(command):
    result = triptych(command, "--help")
    assert result.returncode == 0
    assert f"triptych {command}" in result.stdout
    if command != "demo":
        assert "Examples:" in result.stdout


def test_the_installed_script_and_the_version():
    script = shutil.which("triptych", path=os.path.dirname(sys.executable))  # noqa: PTH120
    assert script
    result = subprocess.run([script, "--version"], capture_output=True, text=True, check=True)
    assert result.stdout == f"triptych {__version__}\n"


UNCHECKED = ["--collection", "memory://none"]  # on an object store, so that the other arguments are checked first
USAGE_ERRORS = [
    (["fly"], "No such command 'fly'"),
    (["train", "trimodel"], "recipe 'trimodel' is unknown"),
    (["train", "trimodal"], "names no manifest"),
    (["train", "trimodal", "--data", "missing.csv"], "missing.csv: no such file"),
    (["train", "trimodal", "--set", "training.epoch=1"], "key 'epoch' is unknown; known: batch"),
    (["evaluate", "missing", "--data", "missing.csv"], "no such file"),
    (["index", ".", "--space", "missing"], "no such run folder"),
    (["index", "missing"], "missing: no such folder or file; give a folder"),
    (["spaces", "use", "missing"], "missing: no such run folder"),
    (["search", "bell", "--collection", "missing"], "no collection here"),
    (["search"], "Usage"),
    (["search", "--modality", "audio", *UNCHECKED], "nothing to look for"),
    (["search", "bell", "--weight", "smell=2", *UNCHECKED], "part 'smell' is unknown"),
    (["search", "bell", "--weight", "text=-2", *UNCHECKED], "give a number above 0"),
    (["search", "bell", "--where", "split", *UNCHECKED], "write NAME=VALUE"),
    (["search", "bell", "--modality", "smell", *UNCHECKED], "modality 'smell' is unknown; known: audio, image, text"),
    (["search", "bell", "-k", "0"], "greater than or equal to 1"),
    (["validate", "missing.csv"], "missing.csv: no such file"),
    (["data", "synthetic", "here", "--scenes", "1"], "scenes is 1; allowed"),
    (["data", "synthetic", "here", "--noise-rate", "1.5"], "noise_rate is 1.5; allowed"),
]


@pytest.mark.parametrize(("arguments", "message"), USAGE_ERRORS, ids=[" ".join(m[0]) for m in USAGE_ERRORS])
def test_usage_errors_print_one_message_and_exit_2(arguments, message, tmp_path):
    result = triptych(*arguments, cwd=tmp_path)
    assert result.returncode == 2
    assert message in result.stdout + result.stderr
    assert "Traceback" not in result.stderr
    assert list(tmp_path.iterdir()) == [], "a usage error leaves no files"


def test_a_warning_is_printed_without_a_line_of_code(monkeypatch, capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        monkeypatch.setattr(cli, "app", lambda: warnings.warn("texts are truncated [shown once]", stacklevel=2))
        cli.main()
    assert capsys.readouterr().err == "warning: texts are truncated [shown once]\n"


def test_a_path_with_an_unknown_user_is_one_clear_error(tmp_path):
    result = triptych("spaces", "use", "~nobody-of-this-name/run", cwd=tmp_path)
    assert result.returncode == 2
    assert result.stderr.startswith("error: a path begins with ~ and a user whose home folder is not known")
