"""Detection of formats by content: supported files are read, unsupported formats are named in the error."""

import io
import sqlite3
import tarfile
import zipfile

import pytest

from tests.media import media_files
from triptych.errors import MediaError
from triptych.media import modalities_of
from triptych.media.inspection import detect_unsupported_format, inspect_file


def make_zip() -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr("word/document.xml", "<w/>")
    return data.getvalue()


def make_tar() -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("a.txt"))
    return data.getvalue()


def make_database(folder) -> bytes:
    with sqlite3.connect(folder / "made.db") as connection:
        connection.execute("create table t (a)")
    connection.close()
    return (folder / "made.db").read_bytes()


FORMATS = {
    "paper.pdf": (b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n", "a PDF document"),
    "letter.docx": (make_zip(), "a ZIP archive, or a document that is one"),
    "many.tar": (make_tar(), "a tar archive"),
    "setup.exe": (b"MZ\x90\x00" + bytes(60), "a Windows program"),
    "photo.jxl": (b"\x00\x00\x00\x0cJXL \r\n\x87\n" + bytes(100), "a JPEG XL image"),
    "photo.jpg": (b"\x00\x00\x00\x0cJXL \r\n\x87\n" + bytes(100), "a JPEG XL image"),
    "poster.psd": (b"8BPS\x00\x01" + bytes(100), "a Photoshop image"),
    "drawing.svg": (b'<?xml version="1.0"?>\n<svg xmlns="http://www.w3.org/2000/svg"/>', "an SVG drawing"),
    "rain.wav": (b"<!DOCTYPE html><html><h1>404 Not Found</h1></html>", "an HTML page"),
    "list.csv": (("a,b\n1,größer\n" * 900).encode(), "text, which is read from .txt and .md files only"),
    "song.mid": (b"MThd\x00\x00\x00\x06\x00\x01" + bytes(20), "a MIDI file"),
}


@pytest.mark.parametrize("name", FORMATS)
def test_unsupported_formats_are_named(tmp_path, name):
    data, description = FORMATS[name]
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(MediaError, match=r"give an image \(png, jpg …\), audio") as error:
        inspect_file(path, modalities_of(path))
    assert str(error.value).startswith(f"{path}: is {description}")


def test_a_database_is_named(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(make_database(tmp_path))
    assert detect_unsupported_format(path) == "an SQLite database"


@pytest.mark.parametrize("text", ["MZ is a name", "%PDF- is how it starts", "<html> is a tag", "BZh"])
def test_text_files_may_start_with_any_signature(tmp_path, text):
    path = tmp_path / "note.txt"
    path.write_text(text)
    assert inspect_file(path, modalities_of(path)).text == text


def test_supported_formats_are_not_detected(tmp_path):
    video_path = media_files.save_video(tmp_path / "clip.mp4", seconds=1.0)
    assert detect_unsupported_format(video_path) is None
    assert inspect_file(video_path, modalities_of(video_path)).modalities == ("image", "audio")
    (tmp_path / "broken.wav").write_text("not audio")
    with pytest.raises(MediaError, match="cannot be read as audio"):
        inspect_file(tmp_path / "broken.wav", modalities_of(tmp_path / "broken.wav"))
    (tmp_path / "noise.bin").write_bytes(bytes(range(1, 200)) * 9)
    assert detect_unsupported_format(tmp_path / "noise.bin") is None
