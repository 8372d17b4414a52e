"""The list of spaces."""

from dataclasses import asdict

from tests.spaces.hub_folder import add_model, write_placeholder
from tests.spaces.test_hub_cache import CLIP, FILES
from triptych.checkpoint import load
from triptych.spaces import catalogue
from triptych.spaces.catalogue import list_spaces, read_space_header
from triptych.spaces.known import KNOWN_SPACES, RECOMMENDED, KnownSpace
from triptych.spaces.user_config import write_configured_space

STARTER = KnownSpace("starter", ("image", "audio", "text"), 384, 27, "MIT")


def list_by_name(starter_needs=()):
    return {info.name: info for info in list_spaces(STARTER, starter_needs)}


def test_every_known_space_is_listed_with_what_it_needs(hub_cache, tmp_path, monkeypatch):
    infos = list_by_name(("pip install x",))
    assert list(infos) == ["starter", *(space.name for space in KNOWN_SPACES)]
    assert infos["starter"].needs == ("pip install x",)
    assert infos["starter"].is_default
    assert infos[RECOMMENDED].needs == (f"triptych encoders fetch {RECOMMENDED}",)
    add_model(hub_cache, RECOMMENDED.removeprefix("hf:"), write_placeholder(tmp_path / "m", CLIP, FILES))
    assert list_by_name()[RECOMMENDED].needs == ()
    monkeypatch.setattr(catalogue, "find_spec", lambda _name: None)
    infos = list_by_name()
    assert infos[RECOMMENDED].needs == ("pip install 'triptych[pretrained]'",)
    sentences = "st:sentence-transformers/all-MiniLM-L6-v2"
    assert infos[sentences].needs[0] == "pip install 'triptych[sentence-transformers]'"


def test_other_models_of_the_cache_are_listed(hub_cache, tmp_path):
    add_model(hub_cache, "me/clip", write_placeholder(tmp_path / "m", CLIP, FILES))
    info = list_by_name()["hf:me/clip"]
    assert asdict(info) == {
        "name": "hf:me/clip",
        "modalities": ("image", "text"),
        "embed_dim": 512,
        "million_parameters": None,
        "licence": None,
        "needs": (),
        "is_default": False,
        "measurements": (),
    }


def test_a_trained_space_is_listed_if_it_is_the_default(run_dir):
    space = load(run_dir)
    write_configured_space(str(run_dir))
    info = list_by_name()[str(run_dir)]
    assert info.is_default
    assert set(info.modalities) == set(space.modalities)
    assert info.embed_dim == space.recipe.space.embed_dim
    assert [name for name, other in list_by_name().items() if other.is_default] == [str(run_dir)]


def test_a_file_that_is_no_space_has_no_facts(tmp_path):
    for content in (b"", b"\xff" * 40, b"\x02\0\0\0\0\0\0\0{}", b"\x02\0\0\0\0\0\0\0[]"):
        (tmp_path / "space.safetensors").write_bytes(content)
        assert read_space_header(str(tmp_path)) == ((), None)
