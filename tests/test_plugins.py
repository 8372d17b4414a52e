"""Plug-ins: which names are found, which packages are allowed, and that nothing else is imported."""

import os
import subprocess
import sys

import pytest
import torch

from tests.plugin_packages import LEAVE_TRACE, LOSS, install, write_modules
from triptych import plugins
from triptych.encoders import ENCODERS
from triptych.errors import PluginError, RecipeError
from triptych.heads import HEADS
from triptych.objectives import OBJECTIVES
from triptych.objectives.infonce import InfoNCE
from triptych.plugins import list_plugins
from triptych.recipe import Recipe
from triptych.similarities import SIMILARITIES
from triptych.space import Space


@pytest.fixture
def trace(tmp_path):
    """A file that modules with LEAVE_TRACE write when they are imported."""
    return tmp_path / "trace"


@pytest.fixture
def good(site):
    """An installed package with a registered objective, and further modules."""
    write_modules(site, good__="", good__losses=LOSS.format(name="Margin"), good__more=LOSS.format(name="Further"))
    install(site, "good-losses", objectives="margin_loss = good.losses:Margin")
    return site


def with_objective(name, **keywords):
    return Recipe.load("trimodal", [f"objectives.0={{name={name!r}}}"], **keywords)


def test_an_entry_point_is_a_name_in_recipes(good):
    recipe = with_objective("margin_loss")
    assert recipe.objectives[0].settings == {"margin": 0.5}
    assert OBJECTIVES["margin_loss"].__module__ == "good.losses"
    assert Recipe.parse(recipe.to_toml()) == recipe
    assert recipe.plugin_packages() == {"good-losses": "1.0"}
    assert "margin_loss" in OBJECTIVES.known_names()
    assert "margin_loss" not in OBJECTIVES, "the dict contains only the mechanisms of triptych"


def test_installed_packages_are_allowed_with_their_sub_modules(good):
    assert with_objective("good.losses:Margin").plugin_packages() == {"good-losses": "1.0"}
    assert with_objective("good.more:Further").plugin_packages() == {"good-losses": "1.0"}
    assert OBJECTIVES["good.losses:Margin"] is OBJECTIVES["margin_loss"]


def test_listing_and_unknown_names_import_nothing(site, trace):
    write_modules(site, noisy=LEAVE_TRACE.format(trace=str(trace)))
    install(site, "noisy", "2.5", objectives="noisy_loss = noisy:Loss", encoders="noisy_text = noisy : Text [extra]")
    listed = [(p.role, p.name, p.package, p.version) for p in list_plugins() if p.package == "noisy"]
    assert listed == [("encoder", "noisy_text", "noisy", "2.5"), ("objective", "noisy_loss", "noisy", "2.5")]
    with pytest.raises(RecipeError, match=r"'noisy_los' is unknown; known: .*noisy_loss.*did you mean 'noisy_"):
        with_objective("noisy_los")
    with pytest.raises(RecipeError, match=r"the encoder's name is missing; known: .*noisy_text"):
        Recipe.load("trimodal", ["space.encoders.text={}"])
    with_objective("triplet")
    assert not trace.exists()
    with pytest.raises(PluginError, match=r"noisy:Loss .*class 'Loss' is unknown"):
        with_objective("noisy_loss")
    assert trace.exists()


ATTACKS = [
    "evil:Loss",
    "evil.losses:Loss",
    "os:system",
    "os.path:join",
    "subprocess:Popen",
    "builtins:eval",
    "__main__:Loss",
    "triptych.app.cli:main",
    "triptych.objectives.infonce:InfoNCE",
    "torch:load",
    "torch.nn:Linear",
    "goodevil:Loss",
    "good.__main__:Loss",
    "good.losses:Margin.__init__",
    "good.losses:__builtins__",
    "good.losses.os:system",
    "good..losses:Margin",
    ".good.losses:Margin",
    "..evil:Loss",
    "good.losses.:Margin",
    "good.losses:Margin:Margin",
    "good.losses:",
    ":Margin",
    ":",
    "good.losses :Margin",
    "good.losses:Margin\n",
    "good/../evil:Loss",
    "/tmp/evil.py:Loss",
    "gооd.losses:Margin",  # with Cyrillic letters
    "good.losses:Ｍargin",  # with a full-width letter, which Python identifiers normalise
    "evil\x00:Loss",
    "a" * 5000 + ":Loss",
]


@pytest.mark.parametrize("name", ATTACKS)
def test_names_of_other_modules_are_not_imported(good, trace, name):
    """Names that a stranger's recipe may contain, where only the package `good` is installed with entry points."""
    text = LEAVE_TRACE.format(trace=str(trace)) + LOSS.format(name="Loss")
    write_modules(good, evil__=text, evil__losses=text, goodevil=text)
    (good / "good" / "__main__.py").write_text(text)
    before = set(sys.modules)
    recipe = Recipe.load("trimodal").to_toml().replace('name = "infonce"', f"name = {toml_string(name)}")
    with pytest.raises(PluginError) as caught:
        Recipe.parse(recipe)
    assert not trace.exists()
    assert {module for module in set(sys.modules) - before if not module.startswith("good")} == set()
    assert len(str(caught.value)) < 1500
    assert "\n" not in str(caught.value)
    assert "\x00" not in str(caught.value)


def toml_string(text):
    return '"' + "".join(f"\\U{ord(c):08x}" for c in text) + '"'


def test_allowed_packages(site):
    write_modules(site, plain__="", plain__losses=LOSS.format(name="Plain"), plain__more=LOSS.format(name="Further"))
    name = "plain.losses:Plain"
    with pytest.raises(PluginError, match=r"package plain, which is not allowed.*--allow-plugin plain.*TRIPTYCH_ALLOW"):
        with_objective(name)
    with pytest.raises(PluginError, match="package plain, which is not allowed"):
        with_objective(name, allow_plugins=["plain.more", "plai", "plain_"])
    assert with_objective(name, allow_plugins="plain").plugin_packages() == {"plain": ""}
    Space(with_objective(name))  # a plug-in that was imported stays usable
    with pytest.raises(PluginError, match="not allowed"):
        with_objective("plain.more:Further")
    with plugins.allow(["plain.more"]):
        with_objective("plain.more:Further")


def test_the_environment_variable_allows_packages(site, monkeypatch):
    write_modules(site, plain=LOSS.format(name="Plain"))
    monkeypatch.setenv("TRIPTYCH_ALLOW_PLUGINS", "other, plain")
    assert with_objective("plain:Plain").objectives[0].name == "plain:Plain"
    monkeypatch.setenv("TRIPTYCH_ALLOW_PLUGINS", "os")
    with pytest.raises(PluginError, match="os has no plug-ins"):
        with_objective("plain:Other")


UNALLOWABLE = ["os", "triptych", "", "my-package", "my_package==1", "a b", "a:b", ".", "a.", "pаckage", "x" * 999 + "!"]


@pytest.mark.parametrize("name", UNALLOWABLE)
def test_only_import_names_can_be_allowed(name):
    with pytest.raises(PluginError, match=r"has no plug-ins|is not the import name"), plugins.allow([name]):
        pass


def test_a_package_cannot_allow_the_standard_library(site):
    install(site, "odd", objectives="odd = os.path:join", heads="odder = triptych.space:Space")
    for name in ("os.path:join", "os:system", "triptych.space:Space"):
        with pytest.raises(PluginError, match=r"(os|os\.path|triptych\.space) has no plug-ins"):
            with_objective(name)


def test_a_namespace_package_does_not_allow_its_other_parts(site, trace):
    """Packages such as google.cloud.x and google.y share the name google."""
    write_modules(site, shared__alpha__="", shared__alpha__losses=LOSS.format(name="Alpha"))
    write_modules(site, shared__beta=LEAVE_TRACE.format(trace=str(trace)) + LOSS.format(name="Beta"))
    install(site, "alpha", objectives="alpha = shared.alpha.losses:Alpha")
    assert with_objective("shared.alpha.losses:Alpha")
    with pytest.raises(PluginError, match="package shared, which is not allowed"):
        with_objective("shared.beta:Beta")
    assert not trace.exists()


def test_the_mechanisms_of_triptych_take_precedence(site, trace):
    write_modules(site, other=LEAVE_TRACE.format(trace=str(trace)) + LOSS.format(name="Other"))
    install(site, "other", objectives="infonce = other:Other")
    assert OBJECTIVES["infonce"] is InfoNCE
    assert with_objective("infonce").plugin_packages() == {}
    assert not trace.exists()
    assert OBJECTIVES["other:Other"].__module__ == "other"


def test_a_name_of_two_packages_is_an_error_that_names_both(site):
    write_modules(site, first=LOSS.format(name="First"), second=LOSS.format(name="Second"))
    install(site, "first", objectives="twice = first:First")
    install(site, "second", objectives="twice = second:Second")
    message = r"'twice' is registered by first \(first:First\) and second \(second:Second\); .* such as first:First"
    with pytest.raises(PluginError, match=message):
        with_objective("twice")
    assert with_objective("second:Second").plugin_packages() == {"second": "1.0"}


def test_of_two_copies_of_a_package_the_first_on_the_path_counts(good, tmp_path, monkeypatch):
    newer = tmp_path / "newer"
    write_modules(newer, good__="", good__losses=LOSS.format(name="Margin"))
    install(newer, "Good_Losses", "2.0", objectives="margin_loss = good.losses:Margin")
    monkeypatch.syspath_prepend(newer)
    assert [p.version for p in list_plugins("objective") if p.name == "margin_loss"] == ["2.0"]
    assert with_objective("margin_loss").plugin_packages() == {"Good_Losses": "2.0"}


BROKEN = {
    "raise ValueError('no\\nGPU')": r"cannot be imported \(ValueError: no GPU\); update or uninstall it",
    "raise SystemExit(3)": r"cannot be imported \(SystemExit: 3\)",
    "import missing_library": r"cannot be imported \(ModuleNotFoundError: No module named 'missing_library'\)",
    "def Loss(margin: float = 1.0): ...": "is not a subclass of triptych.*Objective",
    "import os as Loss": "is not a subclass of triptych.*Objective",
    "class Loss: ...": "is not a subclass of triptych.*Objective",
    "from triptych.similarities.cosine import Cosine as Loss": "is not a subclass of triptych.*Objective",
    "from triptych.objectives import Objective as Loss": "does not implement (forward|terms)",
    "class Los: ...": "class 'Loss' is unknown; known: Los; did you mean 'Los'",
    LOSS.format(name="Loss").replace(": float", ""): "the argument margin of its constructor has no type; annotate it",
    LOSS.format(name="Loss").replace("float = 0.5", "float | None = None"): "margin .* has the default None",
    LOSS.format(name="Loss").replace("margin", "weight"): "the argument weight .* has a name that recipes reserve",
    LOSS.format(name="Loss").replace("float", "'Unknown'"): "cannot be evaluated .*'Unknown' is not defined",
}


@pytest.mark.parametrize("text", BROKEN)
def test_unusable_plugins_are_errors_that_name_the_package(site, text):
    write_modules(site, broken=text)
    install(site, "broken-package", objectives="broken_loss = broken:Loss")
    with pytest.raises(PluginError, match=BROKEN[text]) as caught:
        with_objective("broken_loss")
    assert "broken" in str(caught.value)
    assert "trimodal.toml with objectives.0" in str(caught.value)


def test_a_registered_module_that_does_not_exist_is_an_error(site):
    install(site, "broken", objectives="one = broken.losses:Loss\ntwo = broken.losses\nthree = broken:a.b")
    with pytest.raises(PluginError, match=r"package broken 1\.0: the module broken is not installed"):
        with_objective("one")
    for name in ("two", "three"):
        with pytest.raises(PluginError, match=r"not of the form package\.module:Class; correct the entry point"):
            with_objective(name)


def test_a_setting_without_default_is_required(site):
    write_modules(site, strict=LOSS.format(name="Strict").replace("float = 0.5", "float"))
    install(site, "strict", objectives="strict = strict:Strict")
    with pytest.raises(RecipeError, match=r"objectives\.0: the key margin is missing"):
        with_objective("strict")
    recipe = Recipe.load("trimodal", ['objectives.0={name="strict", margin=2}'])
    assert recipe.objectives[0].settings == {"margin": 2.0}


OTHER_ROLES = """
import torch
from torch import nn
from triptych.interfaces import Encoder, Head, Similarity

class NoModality(Encoder):
    def prepare(self, source): ...
    def forward(self, inputs, mask): ...

class Classifier(NoModality):
    modality, part_name = "image", "region"
    def class_probabilities(self, mean): ...

class Bare(Head):
    def __init__(self, size: int = 3): ...
    def forward(self, x): ...

class Scaled(Head):
    def __init__(self, input_dim: int, embed_dim: int, *, scale: float = 1.0):
        super().__init__()
        self.linear, self.scale = nn.Linear(input_dim, embed_dim), scale
    def forward(self, x):
        return self.scale * self.linear(x)

class Undecided(Similarity):
    def forward(self, a, b): ...
    def query(self, a): ...
    def keys(self, b): ...
"""


def test_every_role_checks_its_plugins(site):
    write_modules(site, roles=OTHER_ROLES)
    install(site, "roles", heads="scaled = roles:Scaled")
    with pytest.raises(PluginError, match=r"encoder roles:NoModality .*the class does not define modality"):
        _ = ENCODERS["roles:NoModality"]
    with pytest.raises(PluginError, match=r"similarity roles:Undecided .*the class does not define is_exact"):
        _ = SIMILARITIES["roles:Undecided"]
    with pytest.raises(PluginError, match=r"head roles:Classifier .*is not a subclass of triptych\.interfaces\.Head"):
        _ = HEADS["roles:Classifier"]
    with pytest.raises(PluginError, match=r"space\.head: .*needs the arguments input_dim, embed_dim"):
        Recipe.load("trimodal", ["space.head=roles:Bare"])
    with pytest.raises(RecipeError, match=r"space\.encoders\.audio: 'roles:Classifier' is for image"):
        Recipe.load("trimodal", ["space.encoders.audio=roles:Classifier"])
    recipe = Recipe.load("shre", ["data.teacher=roles:Classifier"])
    assert recipe.plugin_packages() == {"roles": "1.0"}
    with pytest.raises(RecipeError, match="teacher 'image_cnn' is unknown; known: efficientnet_lite0"):
        Recipe.load("shre", ["data.teacher=image_cnn"])


def test_a_head_projects_the_pooled_outputs(site):
    write_modules(site, roles=OTHER_ROLES)
    install(site, "roles", heads="scaled = roles:Scaled")
    space = Space(Recipe.load("trimodal", ['space.head={name="scaled", scale=3}', "space.embed_dim=16"]))
    head = space.heads["image"]
    assert type(head).__name__ == "Scaled"
    x = torch.randn(2, 5, space.encoder("image").feature_dim)
    weights = head.state_dict()
    expected = 3 * torch.nn.functional.linear(x, weights["linear.weight"], weights["linear.bias"])
    assert torch.allclose(head(x), expected)


def test_the_current_folder_of_a_notebook_does_not_count(tmp_path, monkeypatch, good, trace):
    """A notebook has "" in the middle of sys.path."""
    folder = tmp_path / "downloaded"
    write_modules(folder, **{name: LEAVE_TRACE.format(trace=str(trace)) for name in ("evil", "good")})
    install(folder, "evil", objectives="evil_loss = evil:Loss")
    monkeypatch.chdir(folder)
    for position in (0, 1):
        path = [*sys.path[:position], "", *sys.path[position:]]
        sys.path[:] = path  # the fixture restores the list
        with pytest.raises(RecipeError, match="objective 'evil_loss' is unknown"):
            with_objective("evil_loss")
        with pytest.raises(PluginError, match="the module evil is not installed"):
            with_objective("evil:Loss", allow_plugins="evil")
        assert with_objective("margin_loss")
        assert sys.path == path
    assert not trace.exists()


PROGRAM = """
from triptych.errors import TriptychError
from triptych.recipe import Recipe

for name, allowed in [("evil_loss", []), ("evil:Loss", []), ("evil:Loss", ["evil"]), ("good_loss", [])]:
    try:
        print(Recipe.load("trimodal", [f"objectives.0={{name='{name}'}}"], allowed).plugin_packages())
    except TriptychError as error:
        print(error)
"""


@pytest.mark.slow
def test_modules_and_metadata_in_the_current_folder_do_not_count(tmp_path):
    """`python -m` and `python -c` put the current folder on sys.path; a stranger may have written its files."""
    folder, trace, site = tmp_path / "downloaded", tmp_path / "trace", tmp_path / "site"
    for directory in (folder, site):
        directory.mkdir()
    write_modules(folder, evil=LEAVE_TRACE.format(trace=str(trace)) + LOSS.format(name="Loss"))
    write_modules(folder, good=LEAVE_TRACE.format(trace=str(trace)) + LOSS.format(name="Loss"))
    install(folder, "evil", objectives="evil_loss = evil:Loss")
    write_modules(site, good=LOSS.format(name="Loss"), program=PROGRAM)
    install(site, "good", objectives="good_loss = good:Loss")

    def run(*command, path):
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*map(str, path), *filter(None, sys.path)])}
        completed = subprocess.run(
            [sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True
        )
        assert completed.returncode == 0, completed.stderr
        return completed.stdout.splitlines()

    for command in (["-m", "program"], ["-c", PROGRAM]):
        unknown, not_allowed, not_installed, installed = run(*command, path=[site])
        assert "objective 'evil_loss' is unknown" in unknown
        assert "needs the plug-in package evil, which is not allowed" in not_allowed
        assert "the module evil is not installed" in not_installed
        assert "modules in the current folder are not imported" in not_installed
        assert installed == "{'good': '1.0'}"
        assert not trace.exists()
    assert run("-m", "program", path=[site, folder])[0] == "{'evil': '1.0'}", "PYTHONPATH is the choice of the user"
    assert trace.exists()
