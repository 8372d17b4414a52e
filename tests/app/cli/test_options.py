"""The option --allow-plugin of commands that read a recipe or a space."""

import inspect

import pytest
from typer.testing import CliRunner

from tests.plugin_packages import LOSS, install, write_modules
from triptych.app.cli import COMMANDS, app
from triptych.errors import PluginError

READS_RECIPE_OR_SPACE = {
    "run",
    "a",
    "recipe",
    "space",
    "overrides",
    "uri",
    "encoder",
    "names",
}  # arguments of such commands


def test_every_command_that_reads_a_recipe_or_a_space_has_the_option():
    parameters = {name: set(inspect.signature(c).parameters) for name, c in COMMANDS.items() if inspect.isfunction(c)}
    readers = {name for name, names in parameters.items() if names & READS_RECIPE_OR_SPACE}
    assert {"train", "evaluate", "compare", "export", "report", "search", "serve", "index", "audit"} <= readers
    assert {name for name, names in parameters.items() if "allow_plugin" in names} == readers


def test_the_option_allows_a_package_for_one_command(site):
    write_modules(site, one=LOSS.format(name="One"), two=LOSS.format(name="Two"))
    arguments = ["recipes", "trimodal", "--set", "objectives.0={name='one:One'}"]
    refused = CliRunner().invoke(app, arguments)
    assert isinstance(refused.exception, PluginError)
    assert "--allow-plugin one" in str(refused.exception)
    result = CliRunner().invoke(app, [*arguments, "--allow-plugin", "two", "--allow-plugin", "one"])
    assert result.exit_code == 0
    assert 'name = "one:One"' in result.stdout
    later = CliRunner().invoke(app, ["recipes", "trimodal", "--set", "objectives.0={name='two:Two'}"])
    assert isinstance(later.exception, PluginError)


@pytest.mark.parametrize("name", ["os", "not-a-module"])
def test_the_option_takes_the_import_name_of_a_package(name):
    result = CliRunner().invoke(app, ["recipes", "--allow-plugin", name])
    assert isinstance(result.exception, PluginError)


def test_recipes_lists_the_plugins(site):
    assert "plug-ins" not in CliRunner().invoke(app, ["recipes"]).stdout
    install(site, "one", "3.1", objectives="margin_loss = one:One", heads="wide_head = one:Wide")
    lines = [line.split() for line in CliRunner().invoke(app, ["recipes"]).stdout.splitlines()]
    assert ["objective", "margin_loss", "one:One", "(one", "3.1)"] in lines
    assert ["head", "wide_head", "one:Wide", "(one", "3.1)"] in lines
