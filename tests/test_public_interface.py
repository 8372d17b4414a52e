"""The public Python interface: its names are pinned, documented and typed, and every example in a docstring runs."""

import doctest
import inspect
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import triptych
from tests.training.test_loop_documentation import MODULES

# `tests/training/test_loop_documentation.py` runs the examples of these modules, which need a manifest.
MODULES_OF_TRAINING_EXAMPLES = {f"triptych.{name}" for name in MODULES}
# A name that users import. Adding a name here is a decision; removing one breaks users' programs.
PUBLIC_NAMES = {
    "classes": ["Callback", "Collection", "Filter", "Hit", "Hits", "Query", "Recipe", "Source", "Space", "StoredItem"],
    "functions": ["audit", "compare", "evaluate", "load", "train"],
    "modules": ["errors", "evaluation", "losses"],
}
# The methods that are documented with arguments and an example.
PUBLIC_METHODS = {
    "Space": [
        "embed",
        "encode",
        "encode_document",
        "encode_query",
        "from_pretrained",
        "push_to_hub",
        "save_pretrained",
        "scores",
        "supports",
    ],
    "Collection": ["add", "list_items", "load_item", "search", "search_similar", "to_arrow", "to_pandas"],
    "Hits": ["to_arrow", "to_dicts", "to_pandas"],
    "Query": ["combine"],
    "Recipe": ["load", "parse", "to_toml"],
}
# The docstring of a method without an example refers to the method that has one. An upload needs the hub.
WITHOUT_EXAMPLE = {
    "Space.embed",
    "Space.encode_document",
    "Space.scores",
    "Collection.list_items",
    "Collection.load_item",
    "Space.push_to_hub",
}
WITHOUT_EXAMPLE |= {"Query.combine", "triptych.losses.Objective"}  # the example is in Query, and in each objective


def list_public_objects() -> Iterator[tuple[str, object]]:
    """Yield the public classes, their public methods, and the public functions."""
    for name in (*PUBLIC_NAMES["classes"], *PUBLIC_NAMES["functions"]):
        yield name, getattr(triptych, name)
    for module in (triptych.evaluation, triptych.losses):
        for name in module.__all__:
            yield f"{module.__name__}.{name}", getattr(module, name)
    for class_name, methods in PUBLIC_METHODS.items():
        for method in methods:
            yield f"{class_name}.{method}", getattr(getattr(triptych, class_name), method)


@pytest.fixture(scope="module")
def example_folder(run_dir, synthetic_manifest, tmp_path_factory):
    """A folder with the files that the examples name."""
    folder, data = tmp_path_factory.mktemp("examples"), synthetic_manifest.parent
    (folder / "runs").mkdir()
    shutil.copytree(run_dir, folder / "runs" / "mine")
    (folder / "recordings").mkdir()
    for i in range(9):
        shutil.copy(data / "audio" / f"{i:06d}.wav", folder / "recordings")
    shutil.copy(data / "audio" / "000000.wav", folder / "bark.wav")
    shutil.copy(data / "audio" / "000001.wav", folder / "roof.wav")
    Image.open(data / "images" / "000000.png").convert("RGB").save(folder / "dog.jpg")
    return folder


@pytest.mark.slow
def test_every_example_runs(example_folder, monkeypatch):
    monkeypatch.chdir(example_folder)
    space = triptych.load("runs/mine")
    media = triptych.Collection("collection", space)
    media.add("recordings", show_progress=False)
    names = {"space": space, "media": media, "collection": media, "Path": Path, "Image": Image, "np": np}
    finder, runner, num_examples = doctest.DocTestFinder(recurse=False), doctest.DocTestRunner(), 0
    for name, public_object in list_public_objects():
        if public_object.__module__ in MODULES_OF_TRAINING_EXAMPLES:
            continue
        module = vars(sys.modules[public_object.__module__])
        public = {n: getattr(triptych, n) for n in triptych.__all__}
        for test in finder.find(public_object, name, globs=module | public | names | {"triptych": triptych}):
            result = runner.run(test)
            assert result.failed == 0, name
            num_examples += result.attempted
    assert num_examples > 20


@pytest.mark.slow
def test_the_code_of_the_page_runs(example_folder, monkeypatch, capsys):
    page = Path(__file__).parent.parent / "docs" / "python.md"
    monkeypatch.chdir(example_folder)
    exec("\n".join(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)), {})
    assert ".wav" in capsys.readouterr().out


def test_public_names_are_pinned():
    assert sorted(triptych.__all__) == sorted(
        ["__version__", *(name for names in PUBLIC_NAMES.values() for name in names)]
    )
    assert set(triptych.__all__) <= set(dir(triptych))
    with pytest.raises(AttributeError, match="has no attribute 'serach'; it has "):
        getattr(triptych, "serach")  # noqa: B009 - a typing error of a user


def test_public_names_are_typed_and_their_docstrings_describe_every_argument():
    problems = []
    for name, public_object in list_public_objects():
        docstring = inspect.getdoc(public_object) or ""
        signature = inspect.signature(public_object)  # pyright: ignore[reportArgumentType]
        parameters = [p for p in signature.parameters.values() if p.name != "self"]
        if inspect.isfunction(public_object):
            problems += [f"{name}: {p.name} has no type" for p in parameters if p.annotation is p.empty]
            problems += [f"{name} has no return type"] if signature.return_annotation is signature.empty else []
        if len(docstring.splitlines()) > 1 and "Args:" in docstring:
            problems += [f"{name}: {p.name} is not described" for p in parameters if f"{p.name}: " not in docstring]
        elif inspect.isfunction(public_object) and len(parameters) > 1 and "`" not in docstring:
            problems.append(f"{name}: the docstring has no Args section, and refers to no other method")
    assert problems == []


def test_public_names_have_an_example_and_classes_describe_their_arguments():
    public = dict(list_public_objects())
    without = {name for name, value in public.items() if ">>>" not in (inspect.getdoc(value) or "")}
    assert without == WITHOUT_EXAMPLE
    undescribed = [
        f"{name}: {argument}"
        for name in PUBLIC_NAMES["classes"]
        if "Args:" in (inspect.getdoc(public[name]) or "")
        for argument in inspect.signature(public[name]).parameters  # pyright: ignore[reportArgumentType]
        if f"{argument}: " not in (inspect.getdoc(public[name]) or "")
    ]
    assert undescribed == []
    assert {name for name in PUBLIC_NAMES["classes"] if "Args:" not in (inspect.getdoc(public[name]) or "")} == {
        "Callback",
        "Hits",
        "Query",
    }


def test_the_package_is_marked_as_typed():
    assert (Path(str(triptych.__file__)).parent / "py.typed").is_file()
