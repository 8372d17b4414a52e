"""The packages of docs/plugins.md work as printed: installed with pip, trained with, evaluated, and uninstalled."""

import importlib.util
import json
import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.conftest import TINY_OVERRIDES
from tests.data.datasets.conversion import unique_wav

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
FILE = re.compile(r"^\*\*(\S+)\*\*.*?\n\n```\w+\n(.*?)```", re.MULTILINE | re.DOTALL)
OVERRIDES = [word for override in TINY_OVERRIDES for word in ("--set", override)]
LOAD = "import sys, triptych; print(type(triptych.load(sys.argv[1]).heads['text']).__name__)"


class Environment:
    """A virtual environment that sees the packages of this environment, with its own site-packages for plug-ins."""

    def __init__(self, folder: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
        self.python = folder / "bin" / "python"
        (site_packages,) = folder.glob("lib/python*/site-packages")
        paths = dict.fromkeys([str(ROOT), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")])
        (site_packages / "this_environment.pth").write_text("".join(f"{path}\n" for path in paths))
        variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        self.variables = {**variables, "COLUMNS": "200", "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}

    def run(self, *arguments: object, code: int = 0, cwd: Path | None = None) -> str:
        """Run Python with arguments, and return what it prints."""
        command = [str(self.python), *map(str, arguments)]
        completed = subprocess.run(command, env=self.variables, cwd=cwd, capture_output=True, text=True)
        output = completed.stdout + completed.stderr
        assert completed.returncode == code, output
        assert "Traceback" not in output
        return output

    def pip(self, *arguments: object) -> None:
        """Run pip of this environment offline, for the virtual environment."""
        command = [sys.executable, "-m", "pip", "--python", self.python, *arguments]
        environment = {**self.variables, "PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        completed = subprocess.run(list(map(str, command)), env=environment, capture_output=True, text=True)
        assert completed.returncode == 0, completed.stdout + completed.stderr

    def install(self, project: Path) -> None:
        """Install a package from its source, without its dependencies."""
        self.pip("install", "--no-deps", "--no-build-isolation", "--force-reinstall", project)


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    if importlib.util.find_spec("setuptools") is None:  # not imported: setuptools fails after an import of distutils
        pytest.skip("the package of the template is built with setuptools")
    return Environment(tmp_path_factory.mktemp("plugins") / "venv")


def write_project(folder: Path, names: set[str]) -> None:
    """Write the files of docs/plugins.md; blocks of the same file are appended."""
    (folder / "triptych_example").mkdir(parents=True)
    (folder / "triptych_example" / "__init__.py").touch()
    for name, text in FILE.findall((ROOT / "docs" / "plugins.md").read_text()):
        if name in names:
            with (folder / name).open("a") as file:
                file.write(text)


def test_the_objective_of_the_page(environment, synthetic_manifest, tmp_path):
    names = {"pyproject.toml", "triptych_example/objectives.py"}
    write_project(tmp_path / "project", names)
    project_file = tmp_path / "project" / "pyproject.toml"
    project_file.write_text(project_file.read_text().split('[project.entry-points."triptych.similarities"]')[0])
    module = (tmp_path / "project" / "triptych_example" / "objectives.py").read_text()
    assert len(module.splitlines()) <= 25
    environment.install(tmp_path / "project")

    assert re.search(
        r"objective +focal +triptych_example\S+ +\(triptych-example 0\.1\.0\)",
        environment.run("-m", "triptych", "recipes"),
    )
    page = (ROOT / "docs" / "plugins.md").read_text()
    (override,) = re.findall(r"^triptych train .* --set '(.*)'$", page, re.MULTILINE)
    run = tmp_path / "run"
    train = [
        "-m",
        "triptych",
        "train",
        "trimodal",
        "--data",
        synthetic_manifest,
        "-o",
        run,
        *OVERRIDES,
        "--set",
        override,
    ]
    environment.run(*train)
    metrics = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    assert {"focal(image,text).focal", "focal(audio,text).focal"} <= metrics.keys()
    assert "`pip install triptych-example==0.1.0`" in (run / "README.md").read_text()
    evaluate = ["-m", "triptych", "evaluate", run, "--data", synthetic_manifest, "--split", "all"]
    assert "R@10" in environment.run(*evaluate)
    assert "LinearHead" in environment.run("-c", LOAD, run)
    tests = environment.run("-m", "pytest", "-p", "no:cacheprovider", "tests/objectives", "-k", "focal", cwd=ROOT)
    assert re.search(r"\b5 passed", tests), tests

    project_file.write_text(project_file.read_text().replace('"0.1.0"', '"0.2.0"'))
    environment.install(tmp_path / "project")
    assert (
        "was trained with version '0.1.0' of the plug-in package triptych-example; version '0.2.0'"
        in environment.run("-c", LOAD, run)
    )

    environment.pip("uninstall", "--yes", "triptych-example")
    for command in (evaluate, ["-m", "triptych", "index", synthetic_manifest, "--space", run]):
        message = environment.run(*command, code=2, cwd=tmp_path)
        assert "needs plug-ins that are not installed: triptych-example 0.1.0." in message
        assert "run: pip install triptych-example==0.1.0" in message
    assert "objective 'focal' is unknown; known: align_uniform" in environment.run(*train, code=2)
    assert "finished" in environment.run("-m", "triptych", "runs", tmp_path), "the list of runs needs no plug-in"


def test_the_other_mechanisms_of_the_page(environment, synthetic_manifest, tmp_path):
    names = {name for name, _ in FILE.findall((ROOT / "docs" / "plugins.md").read_text())}
    assert len(names) == 4
    write_project(tmp_path / "project", names)
    environment.install(tmp_path / "project")
    page = (ROOT / "docs" / "plugins.md").read_text()
    commands = re.findall(r"^python (-m pytest .*)$", page, re.MULTILINE)
    files = [word for command in commands for word in command.split() if word.startswith("tests/")]
    selected = " or ".join(command.split()[-1] for command in commands)
    tests = environment.run("-m", "pytest", "-p", "no:cacheprovider", *files, "-k", selected, cwd=ROOT)
    assert re.search(r"\b1\d passed", tests), tests

    overrides = [override for override in TINY_OVERRIDES if not override.startswith("space.encoders.text")]
    overrides += ["space.similarity=euclidean", "space.head={name='normalised', bias=true}"]
    options = [word for o in [*overrides, "space.encoders.text=bytes_text"] for word in ("--set", o)]
    run = tmp_path / "run"
    environment.run("-m", "triptych", "train", "trimodal", "--data", synthetic_manifest, "-o", run, *options)
    assert "R@10" in environment.run("-m", "triptych", "evaluate", run, "--data", synthetic_manifest, "--split", "all")
    assert "NormalisedHead" in environment.run("-c", LOAD, run)
    index = ["-m", "triptych", "index", synthetic_manifest, "--space", run, "--collection", tmp_path / "collection"]
    environment.run(*index)
    hits = environment.run("-m", "triptych", "search", "a red bell", "--collection", tmp_path / "collection", "--json")
    assert len(json.loads(hits[hits.index("[") :])) == 10
    assert re.search(r"bytes_text +text +token +64", environment.run("-m", "triptych", "encoders"))

    (tmp_path / "copy").mkdir()
    for number in range(3):
        (tmp_path / "copy" / f"{number}.wav").write_bytes(unique_wav(number))
    (tmp_path / "copy" / "captions.tsv").write_text("0.wav\ta bell\n1.wav\ta drum\n2.wav\train\n")
    assert "A table of captions (audio–text)" in environment.run("-m", "triptych", "data")
    (usage,) = re.findall(r"triptych (data captions_tsv) FOLDER (--option \w+=\w+)", page)
    written = environment.run("-m", "triptych", *usage[0].split(), tmp_path / "copy", *usage[1].split())
    assert "3 rows" in written
    assert "train 3" in written
