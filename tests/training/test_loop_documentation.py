"""The examples of docs/python-training.md and of the docstrings run, in a folder with a manifest pairs.csv."""

import doctest
import re
import shutil
import sys
from importlib import import_module
from pathlib import Path

import pytest

from triptych.encoders import ENCODERS

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "python-training.md"
MODULES = ["training.loop", "training.callbacks", "training.loggers", "evaluation.evaluate", "evaluation.comparison"]
MODULES += ["auditing.audit"]
EXAMPLES = {
    example.name.removeprefix("triptych."): example
    for module in MODULES
    for example in doctest.DocTestFinder().find(import_module(f"triptych.{module}"))
    if example.examples
}
PACKAGES = {"TensorBoard": "tensorboard", "WandB": "wandb", "MLflow": "mlflow", "Trackio": "trackio"}


@pytest.fixture(scope="module")
def folder(synthetic_manifest, tmp_path_factory):
    folder = tmp_path_factory.mktemp("documentation") / "work"
    shutil.copytree(synthetic_manifest.parent, folder)
    (folder / synthetic_manifest.name).rename(folder / "pairs.csv")
    return folder


def skip_without_audit_encoders():
    for names in (["efficientnet_lite0"], ["minilm"], ["efficientat_mn04", "soundnet"]):
        reasons = [ENCODERS[name].unavailable_reason() for name in names]
        if all(reasons):
            pytest.skip(f"{names[-1]}: {reasons[-1]}")


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_in_docstrings(name, folder, monkeypatch):
    pytest.importorskip("pandas", reason="needs pandas")
    package = PACKAGES.get(name.rpartition(".")[2])
    if package:
        pytest.importorskip(package, reason=f"{package} is not installed (triptych[{package}])")
    if name.startswith("auditing"):
        skip_without_audit_encoders()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (folder / "mlruns").as_uri())
    monkeypatch.setenv("TRACKIO_DIR", str(folder / "trackio"))
    for module in [module for module in sys.modules if module.split(".")[0] == "trackio"]:
        monkeypatch.delitem(sys.modules, module)  # trackio reads its folder when it is imported
    assert doctest.DocTestRunner().run(EXAMPLES[name]).failed == 0


def test_examples_of_the_page(folder, monkeypatch, capsys):
    pytest.importorskip("pandas", reason="needs pandas")
    pytest.importorskip("tensorboard", reason="needs TensorBoard")
    monkeypatch.chdir(folder)
    shutil.rmtree(folder / "runs", ignore_errors=True)
    shutil.rmtree(folder / "audits", ignore_errors=True)
    examples = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    *others, audit_example = examples
    assert len(others) == 5
    namespace = {}
    for example in others:
        exec(compile(example, str(PAGE), "exec"), namespace)
    printed = capsys.readouterr().out
    assert "text → image" in printed
    assert "not separable" in printed or "is better" in printed
    assert (folder / "runs/memory/data/manifest.parquet").is_file()
    assert (folder / "runs/logged/tensorboard").is_dir()
    skip_without_audit_encoders()
    exec(compile(audit_example, str(PAGE), "exec"), namespace)
    assert "estimated noise rate" in capsys.readouterr().out
