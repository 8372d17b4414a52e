"""Modalities by file extension."""

from triptych.media import modalities_of, modality_of


def test_modalities_by_extension(tmp_path):
    assert modalities_of(tmp_path / "a.MP4") == ("image", "audio")
    assert modality_of(tmp_path / "a.mp4") is None
    assert [modality_of(tmp_path / f"a.{e}") for e in ("m4a", "png", "txt", "exe")] == ["audio", "image", "text", None]
