"""The default space: the user's choice, a model in the cache of the hub, a download, the starter space."""

import pytest

from tests.spaces.hub_folder import add_model, write_placeholder
from tests.spaces.test_hub_cache import CLIP, FILES, OMNI
from triptych import hub
from triptych.errors import CheckpointError, UsageError
from triptych.spaces import default
from triptych.spaces.default import choose_default_space, find_default_space
from triptych.spaces.known import RECOMMENDED
from triptych.spaces.user_config import config_path, write_configured_space

NAME = RECOMMENDED.removeprefix("hf:")


def add_placeholder(hub_cache, tmp_path, name, config):
    return add_model(hub_cache, name, write_placeholder(tmp_path / "models" / name, config, FILES))


def test_the_order_of_the_choices(hub_cache, tmp_path, monkeypatch):
    assert find_default_space().name == "starter"
    add_placeholder(hub_cache, tmp_path, "a/clip", CLIP)
    assert find_default_space().name == "starter", "a model without audio is no default"
    add_placeholder(hub_cache, tmp_path, "a/omni", OMNI)
    assert find_default_space().name == "hf:a/omni"
    add_placeholder(hub_cache, tmp_path, NAME, OMNI)
    assert find_default_space().name == RECOMMENDED
    write_configured_space("hf:me/mine")
    assert find_default_space().name == "hf:me/mine"
    monkeypatch.setenv("TRIPTYCH_SPACE", "starter")
    assert find_default_space() == default.DefaultSpace("starter", "from TRIPTYCH_SPACE")


def test_one_line_says_which_space_and_how_to_choose_another(capsys):
    assert choose_default_space() == "starter"
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("space: starter (packaged encoders")
    assert "choose another with --space NAME or `triptych spaces use NAME`" in line


def test_a_chosen_space_that_does_not_exist_names_its_origin(monkeypatch):
    write_configured_space("runs/none")
    with pytest.raises(UsageError, match=r"config\.toml does not exist: runs/none: no such run folder.*spaces use"):
        find_default_space()
    monkeypatch.setenv("TRIPTYCH_SPACE", "/nowhere")
    with pytest.raises(UsageError, match="in TRIPTYCH_SPACE does not exist: /nowhere: no such run folder"):
        find_default_space()
    assert config_path().is_file()


@pytest.fixture
def reachable(monkeypatch):
    """A hub that answers; downloads are recorded."""
    downloads = []
    monkeypatch.setattr(hub, "read_model_facts", lambda _name: hub.ModelFacts(1_500_000_000, "apache-2.0"))
    monkeypatch.setattr(hub, "free_cache_bytes", lambda: 10_000_000_000)
    monkeypatch.setattr(hub, "download", downloads.append)
    return downloads


def test_the_question_says_name_size_and_licence(reachable):
    questions = []
    assert choose_default_space(lambda question: bool(questions.append(question))) == "starter"
    assert questions == [
        f"{RECOMMENDED} (image, audio and text; 1.5 GB, licence apache-2.0): download it? Otherwise, the starter space "
        "is used"
    ]
    assert reachable == []
    assert choose_default_space(lambda _question: True) == RECOMMENDED
    assert reachable == [NAME]


def test_nothing_is_asked_without_need(reachable, hub_cache, tmp_path, monkeypatch):
    def refuse(_question):
        pytest.fail("asked")

    monkeypatch.setattr(hub, "free_cache_bytes", lambda: 1_600_000_000)
    assert choose_default_space(refuse) == "starter", "the disk is too small"
    monkeypatch.setattr(hub, "read_model_facts", lambda _name: None)
    assert choose_default_space(refuse) == "starter", "the hub gives no answer"
    write_configured_space("starter")
    assert choose_default_space(refuse) == "starter"


def test_a_failed_download_says_how_to_go_on(reachable, monkeypatch):
    def fail(name):
        raise CheckpointError(f"hf:{name}: the connection was closed")

    monkeypatch.setattr(hub, "download", fail)
    with pytest.raises(CheckpointError, match="Run the same command to resume, or add --space starter"):
        choose_default_space(lambda _question: True)
