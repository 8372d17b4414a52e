"""Dataset plug-ins as sub-commands of `triptych data`."""

import json

import pytest
from typer.testing import CliRunner

from tests.data.datasets.conversion import unique_wav
from tests.plugin_packages import LEAVE_TRACE, install, write_modules
from triptych.app.cli import app
from triptych.errors import PluginError, RecipeError, UsageError

DATASET = """
from triptych.data.datasets.draft import Dataset, DraftItem, ManifestDraft
from triptych.data.datasets.local_copy import LocalCopy

def read(copy: LocalCopy, *, limit: int = 9, split: str = "test") -> ManifestDraft:
    files = copy.find_files("*.wav")[:limit]
    return ManifestDraft([DraftItem(f.stem, {"audio": f}, (f.stem,), split=split) for f in files])

DATASET = Dataset("Named recordings", "audio–text", ("*.wav",), "CC0", read)
"""


@pytest.fixture
def copy(tmp_path):
    """A copy of the dataset of DATASET."""
    folder = tmp_path / "copy"
    folder.mkdir()
    for number, name in enumerate(("bell", "drum", "rain")):
        (folder / f"{name}.wav").write_bytes(unique_wav(number))
    return folder


def run(*arguments):
    return CliRunner().invoke(app, ["data", *map(str, arguments)], env={"COLUMNS": "200"})


def test_help_lists_plugins_without_importing_them(site):
    write_modules(site, named=LEAVE_TRACE.format(trace=str(site / "trace")) + DATASET)
    install(site, "named", datasets="named_wav = named:DATASET")
    result = run("--help")
    assert "named_wav" in result.stdout
    assert "Plug-ins" in result.stdout
    assert "Convert a dataset with a plug-in" in run("named_wav", "--help").stdout
    assert not (site / "trace").exists()


def test_the_list_shows_what_plugins_expect_and_reports_broken_ones(site):
    write_modules(site, named=DATASET, wrong="DATASET = 3")
    install(site, "named", datasets="named_wav = named:DATASET\nwrong = wrong:DATASET")
    result = run()
    assert result.exit_code == 0
    assert "named_wav     Named recordings (audio–text)" in result.stdout
    assert "options: --option limit, --option split" in result.stdout
    assert "wrong:DATASET of the package named 1.0 is not an instance of" in result.stderr


def test_a_plugin_converts_a_dataset_with_its_options(site, copy, tmp_path):
    write_modules(site, named=DATASET)
    install(site, "named", datasets="named_wav = named:DATASET")
    result = run("named_wav", copy, "-o", tmp_path / "copy" / "m.csv", "--option", "limit=2", "--option", "split=train")
    assert result.exit_code == 0, result.exception
    assert "2 rows" in result.stdout
    sidecar = json.loads((copy / "m.source.json").read_text())
    assert sidecar["options"] == {"limit": 2, "split": "train"}
    wrong_type = run("named_wav", copy, "--option", "limit=many").exception
    assert isinstance(wrong_type, RecipeError)
    assert "--option limit = 'many': must be an integer" in str(wrong_type)
    unknown = run("named_wav", copy, "--option", "fold=1").exception
    assert isinstance(unknown, UsageError)
    assert "has no option --fold; its options: --limit, --split" in str(unknown)


def test_a_module_must_be_allowed(site, copy, tmp_path):
    write_modules(site, unregistered=DATASET)
    arguments = ["unregistered:DATASET", copy, "-o", tmp_path / "copy" / "m.csv"]
    refused = run(*arguments).exception
    assert isinstance(refused, PluginError)
    assert "package unregistered, which is not allowed" in str(refused)
    result = run(*arguments, "--allow-plugin", "unregistered")
    assert result.exit_code == 0, result.exception
    assert "3 rows" in result.stdout
