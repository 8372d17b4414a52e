"""Spaces that use plug-ins: what a space file records, and what loading it needs."""

import json

import pytest
from safetensors import safe_open
from safetensors.torch import save_file

from tests.conftest import TINY_OVERRIDES, have_identical_weights
from tests.plugin_packages import LEAVE_TRACE, LOSS, install, package_folder, write_modules
from triptych.checkpoint import load, save, save_pretrained
from triptych.errors import PluginError, RecipeError, TriptychError
from triptych.interfaces import Source
from triptych.recipe import Recipe
from triptych.search.collection import Collection
from triptych.space import Space

HEAD = """
from torch import nn
from triptych.interfaces import Head

class Double(Head):
    def __init__(self, input_dim: int, embed_dim: int):
        super().__init__()
        self.linear = nn.Linear(input_dim, embed_dim)
    def forward(self, x):
        return 2 * self.linear(x)
"""


def install_losses(folder, version="1.0"):
    write_modules(folder, losses=LOSS.format(name="Margin"))
    install(folder, "margin-losses", version, objectives="margin_loss = losses:Margin")


def make_space(*overrides, allow_plugins=()):
    space = Space(Recipe.load("trimodal", [*TINY_OVERRIDES, *overrides], allow_plugins))
    space.encoder("text").fit_vocabulary(Source("text", text) for text in ("a bell rings", "two red drums"))
    return space.eval()


@pytest.fixture
def space_file(tmp_path):
    """A space that was trained with an objective of the package margin-losses 1.0, which is no longer installed."""
    with package_folder(tmp_path / "training site") as folder:
        install_losses(folder)
        space = make_space('objectives.0={name="margin_loss"}')
        save(space, tmp_path / "space.safetensors")
        save_pretrained(space, tmp_path / "shared")
    return tmp_path / "space.safetensors"


def read_file(path):
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
        return json.loads(file.metadata()["triptych"]), tensors


def test_a_space_records_the_packages_of_its_plugins(space_file):
    assert read_file(space_file)[0]["plugins"] == {"margin-losses": "1.0"}
    assert json.loads((space_file.parent / "shared" / "config.json").read_text())["plugins"] == {"margin-losses": "1.0"}
    card = (space_file.parent / "shared" / "README.md").read_text()
    assert "The space needs plug-ins: `pip install margin-losses==1.0`." in card


def test_spaces_without_plugins_need_no_package(run_dir):
    assert read_file(run_dir / "space.safetensors")[0]["plugins"] == {}
    assert "plug-ins" not in (run_dir / "README.md").read_text()


def test_loading_without_the_package_names_the_pip_command(space_file):
    message = r"needs plug-ins that are not installed: margin-losses 1\.0\. .*run: pip install margin-losses==1\.0"
    for path in (space_file, space_file.parent / "shared"):
        with pytest.raises(PluginError, match=message):
            load(path)
    with pytest.raises(PluginError, match=message):
        Collection(space_file.parent / "collection", space_file)


def test_loading_with_the_same_version(space_file, site):
    install_losses(site)
    space = load(space_file)
    save(space, site / "copy.safetensors")
    assert have_identical_weights(space, load(site / "copy.safetensors"))


def test_loading_with_another_version_warns(space_file, site):
    install_losses(site, version="2.0")
    message = r"was trained with version '1\.0' of the plug-in package margin-losses; version '2\.0' is installed"
    with pytest.warns(UserWarning, match=message):
        load(space_file)


def test_a_module_without_package_must_be_allowed(tmp_path, site):
    write_modules(site, my_head=HEAD)
    space = make_space("space.head=my_head:Double", allow_plugins="my_head")
    save(space, tmp_path / "space.safetensors")
    save_pretrained(space, tmp_path / "shared")
    assert read_file(tmp_path / "space.safetensors")[0]["plugins"] == {"my_head": ""}
    card = (tmp_path / "shared" / "README.md").read_text()
    assert "needs plug-ins: `my_head` (a module that is not in a package)." in card
    assert "pip install" not in card, "a package of this name may be another's"
    with package_folder(tmp_path / "other site") as other:  # like a new process: nothing is imported yet
        write_modules(other, my_head=HEAD)
        with pytest.raises(PluginError, match=r"the recipe in .*space\.head: .*package my_head, which is not allowed"):
            load(tmp_path / "space.safetensors")
        assert have_identical_weights(space, load(tmp_path / "space.safetensors", allow_plugins=["my_head"]))
        collection = Collection(tmp_path / "collection", tmp_path / "space.safetensors", allow_plugins="my_head")
        assert have_identical_weights(space, collection.space)


@pytest.mark.parametrize("name", ["evil:Loss", "os:system", "evil:Loss.__init__"])
def test_a_changed_space_file_imports_nothing(space_file, site, name):
    trace = site / "trace"
    write_modules(site, evil=LEAVE_TRACE.format(trace=str(trace)) + LOSS.format(name="Loss"))
    header, tensors = read_file(space_file)
    header["recipe"] = header["recipe"].replace('"margin_loss"', f'"{name}"')
    for recorded in ({}, {"evil": "1.0"}, {"evil": 3}, ["evil"], None, "evil"):
        save_file(tensors, space_file, metadata={"triptych": json.dumps({**header, "plugins": recorded})})
        with pytest.raises(PluginError):
            load(space_file)
    assert not trace.exists()


@pytest.mark.parametrize(
    "package", ["--index-url=evil", "evil; rm", "a b", "\x1b[2Jevil", "evil @ file", "../evil", ""]
)
def test_names_that_pip_would_not_accept_are_not_suggested(space_file, package):
    header, tensors = read_file(space_file)
    for recorded in ({package: "1.0"}, {"evil": f"1.0{package or ' '}"}):
        save_file(tensors, space_file, metadata={"triptych": json.dumps({**header, "plugins": recorded})})
        with pytest.raises(RecipeError, match="objective 'margin_loss' is unknown") as caught:
            load(space_file)
        assert "pip install" not in str(caught.value)


def test_a_long_list_of_packages_is_cut(space_file):
    header, tensors = read_file(space_file)
    recorded = {f"package-{i}": "1.0" for i in range(5000)}
    save_file(tensors, space_file, metadata={"triptych": json.dumps({**header, "plugins": recorded})})
    with pytest.raises(PluginError, match=r"run: pip install package-0==1\.0 ") as caught:
        load(space_file)
    assert len(str(caught.value)) < 2000


def test_a_header_with_invalid_packages_is_an_error(space_file, site):
    install_losses(site)
    header, tensors = read_file(space_file)
    for recorded in (["margin-losses"], None, 3):
        save_file(tensors, space_file, metadata={"triptych": json.dumps({**header, "plugins": recorded})})
        with pytest.raises(TriptychError, match="the file was modified"):
            load(space_file)
