"""The facts about encoders that `triptych encoders` prints."""

from tests.plugin_packages import install, write_modules
from triptych.encoders import ENCODERS
from triptych.encoders.catalogue import list_encoders
from triptych.interfaces import MODALITIES


def test_every_encoder_is_described_by_modality_trainable_first():
    infos, problems = list_encoders(ENCODERS)
    assert problems == []
    assert {info.name for info in infos} == set(ENCODERS)
    order = [(MODALITIES.index(info.modality), info.frozen) for info in infos]
    assert order == sorted(order)


def test_trainable_encoders_have_the_size_of_an_instance():
    infos = {info.name: info for info in list_encoders(ENCODERS)[0]}
    encoder = ENCODERS["audio_cnn"]()
    assert infos["audio_cnn"].feature_dim == encoder.feature_dim
    assert infos["audio_cnn"].parameters == sum(p.numel() for p in encoder.parameters())
    assert infos["audio_cnn"].unavailable_reason is None


PLUGINS = """
from torch import nn
from triptych.interfaces import Encoder

class Letters(Encoder):
    modality, part_name, origin = "text", "token", "the package letters"
    def __init__(self, feature_dim: int = 6) -> None:
        super().__init__()
        self.feature_dim, self.vectors = feature_dim, nn.Embedding(26, feature_dim)
    def prepare(self, source): ...
    def forward(self, inputs, mask): ...

class Demanding(Letters):
    def __init__(self, alphabet: str) -> None:
        super().__init__()
"""


def test_plugins_are_listed_and_unusable_plugins_are_reported(site):
    write_modules(site, letters=PLUGINS, crashing="1 / 0")
    entries = "letters = letters:Letters\ndemanding = letters:Demanding\ncrashing = crashing:Encoder"
    install(site, "letters", encoders=f"{entries}\nminilm = letters:Letters")
    infos, problems = list_encoders(ENCODERS)
    by_name = {info.name: info for info in infos}
    assert by_name.keys() == {*ENCODERS, "letters"}
    info = by_name["letters"]
    assert (info.modality, info.feature_dim, info.parameters, info.origin) == ("text", 6, 156, "the package letters")
    assert by_name["minilm"].feature_dim == 384, "our own encoder takes precedence"
    crashing, demanding = problems
    assert "ZeroDivisionError" in crashing
    assert "the plug-in demanding cannot be used: " in demanding
    assert "alphabet" in demanding
