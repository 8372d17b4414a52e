"""The facts about encoders that `triptych encoders` prints."""

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
