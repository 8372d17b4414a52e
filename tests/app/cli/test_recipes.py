"""The `triptych recipes` command."""

import pytest

from tests.app.cli.run_cli import triptych

pytestmark = pytest.mark.slow


def test_recipes_are_listed_and_printed():
    assert "trimodal" in triptych("recipes").stdout
    assert "epochs = 3" in triptych("recipes", "trimodal", "--set", "training.epochs=3").stdout
