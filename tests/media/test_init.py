"""Modalities by file extension."""

from triptych.media import modalities_of


def test_modalities_by_extension(tmp_path):
    assert modalities_of(tmp_path / "a.MP4") == ("image", "audio")
    modalities = [modalities_of(tmp_path / f"a.{extension}") for extension in ("m4a", "png", "txt", "exe")]
    assert modalities == [("audio",), ("image",), ("text",), ()]
