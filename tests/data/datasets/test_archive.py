"""Untrusted archives: paths, links, sparse files, headers and sizes."""

import gzip
import io
import tarfile

import pytest

from tests.data.dataset_replicas import WAV, write_deb, write_file, write_tar
from tests.data.datasets.conversion import convert_copy
from triptych.data.datasets import archive
from triptych.errors import ManifestError


def write_special_tar(path, name, **fields):
    """Write a tar file with a valid sample, and a member that is no regular file or has an invalid name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as file:
        for good, content in {"0.wav": WAV, "0.txt": b"good"}.items():
            info = tarfile.TarInfo(good)
            info.size = len(content)
            file.addfile(info, io.BytesIO(content))
        info = tarfile.TarInfo(name)
        for field, value in fields.items():
            setattr(info, field, value)
        file.addfile(info, io.BytesIO(b"x" * info.size))
    return path


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("../evil.txt", {"size": 1}),
        ("a/../../evil.txt", {"size": 1}),
        ("/evil.txt", {"size": 1}),
        ("..\\evil.txt", {"size": 1}),
        ("evil.txt", {"type": tarfile.SYMTYPE, "linkname": "../../secret"}),
        ("evil.wav", {"type": tarfile.LNKTYPE, "linkname": "0.wav"}),
        ("evil.jpg", {"type": tarfile.FIFOTYPE}),
        ("evil.jpg", {"type": tarfile.CHRTYPE}),
    ],
)
def test_members_outside_the_folder_and_links_raise(tmp_path, name, fields):
    root = tmp_path / "copy"
    write_special_tar(root / "train-0.tar", name, **fields)
    with pytest.raises(ManifestError, match="unpacking stopped"):
        convert_copy(root, "webdataset")
    outside = {path.name for path in tmp_path.rglob("*") if "manifest_files" not in path.parts}
    assert outside == {"copy", "train-0.tar"}
    assert not any(path.is_symlink() or "evil" in path.name for path in tmp_path.rglob("*"))


def test_an_existing_symlink_is_not_followed(tmp_path):
    root = tmp_path / "copy"
    write_tar(root / "train-0.tar", {"a/0.wav": WAV, "a/0.txt": b"words"})
    (tmp_path / "elsewhere").mkdir()
    (root / "manifest_files/train-0").mkdir(parents=True)
    (root / "manifest_files/train-0/a").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ManifestError, match="would be written outside"):
        convert_copy(root, "webdataset")
    assert list((tmp_path / "elsewhere").iterdir()) == []


def tar_header(type_flag, size, name="0.wav", fields=()):
    """Return a header block of a tar archive, with raw bytes at given offsets."""
    info = tarfile.TarInfo(name)
    info.size, info.type = size, type_flag
    block = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    for offset, content in fields:
        block[offset : offset + len(content)] = content
    block[148:156] = b"%06o\0 " % (256 + sum(block[:148]) + sum(block[156:]))
    return bytes(block)


def pad_block(content):
    return content + b"\0" * (-len(content) % 512)


def pax_header(records, type_flag=tarfile.XHDTYPE):
    """Return a pax header with these records."""
    content = b""
    for keyword, value in records.items():
        rest = len(f" {keyword}={value}\n")
        length = next(n for n in range(rest, rest + 20) if n == rest + len(str(n)))
        content += f"{length} {keyword}={value}\n".encode()
    return tar_header(type_flag, len(content), "pax") + pad_block(content)


GOOD_MEMBER = tar_header(b"0", len(WAV)) + pad_block(WAV) + bytes(1024)


CLAIMED_SIZE = 1_900_000_000


MAP_BEFORE_DATA = {"GNU.sparse.major": 1, "GNU.sparse.minor": 0}


SPARSE = {
    "gnu": tar_header(
        tarfile.GNUTYPE_SPARSE,
        512,
        fields=[(386, b"%011o\0%011o\0" % (CLAIMED_SIZE - 512, 512)), (483, b"%011o\0" % CLAIMED_SIZE)],
    ),
    "pax 0.1": pax_header({"GNU.sparse.size": CLAIMED_SIZE, "GNU.sparse.map": f"{CLAIMED_SIZE - 512},512"})
    + tar_header(b"0", 512),
    "pax 1.0": pax_header({**MAP_BEFORE_DATA, "GNU.sparse.realsize": CLAIMED_SIZE})
    + tar_header(b"0", 1024)
    + pad_block(f"1\n{CLAIMED_SIZE - 512}\n512\n".encode()),
}


@pytest.mark.parametrize("form", SPARSE)
def test_sparse_members_write_nothing(tmp_path, form):
    write_file(tmp_path / "train-0.tar", SPARSE[form] + b"x" * 512 + bytes(1024))
    with pytest.raises(ManifestError, match=r"0\.wav is a sparse file; unpacking stopped"):
        convert_copy(tmp_path, "webdataset")
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["train-0.tar"]


MAX_HEADER = archive.MAX_HEADER_BYTES


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        (pax_header({"comment": "a" * MAX_HEADER}), "a header has more than"),
        (tar_header(tarfile.GNUTYPE_LONGNAME, MAX_HEADER) + pad_block(b"a" * MAX_HEADER), "a header has more than"),
        (tar_header(tarfile.GNUTYPE_LONGNAME, 300 << 20), "a header has more than"),
        (
            pax_header(MAP_BEFORE_DATA) + tar_header(b"0", MAX_HEADER) + pad_block(b"9999999\n" + b"0\n" * MAX_HEADER),
            "a header has more than",
        ),
        (tar_header(tarfile.XHDTYPE, 0, "pax") * 500, "recursion"),
        (
            b"".join(pax_header({f"k{n}": "a" * 60_000}, tarfile.XGLTYPE) + GOOD_MEMBER[:-1024] for n in range(6)),
            "global headers",
        ),
    ],
    ids=["pax", "long name", "claimed long name", "sparse map", "chain of headers", "global headers"],
)
def test_header_size_is_bounded(tmp_path, monkeypatch, headers, message):
    monkeypatch.setattr("triptych.data.datasets.webdataset._is_supported_member", lambda name: False)
    write_file(tmp_path / "train-0.tar.gz", gzip.compress(headers + GOOD_MEMBER))
    with pytest.raises(ManifestError, match=message):
        convert_copy(tmp_path, "webdataset")


@pytest.mark.parametrize("name", ["0.wav", "unsupported.pdf"])
def test_content_far_larger_than_its_archive_raises(tmp_path, name):
    content = bytes(archive.EXPANSION_ALLOWANCE + (4 << 20))
    write_file(tmp_path / "train-0.tar.gz", gzip.compress(tar_header(b"0", len(content), name) + content + GOOD_MEMBER))
    with pytest.raises(ManifestError, match=r"unpacks to more than .* 100 times its size; unpacking stopped"):
        convert_copy(tmp_path, "webdataset")
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["train-0.tar.gz"]


@pytest.mark.parametrize(("limit", "value"), [("MAX_MEMBERS", 1), ("MAX_MEMBER_BYTES", 40), ("MAX_TOTAL_BYTES", 48)])
def test_archives_above_the_limits_raise(tmp_path, monkeypatch, limit, value):
    write_tar(tmp_path / "train-0.tar", {"0.wav": WAV, "0.txt": b"words"})
    monkeypatch.setattr(archive, limit, value)
    with pytest.raises(ManifestError, match=r"too large|more than"):
        convert_copy(tmp_path, "webdataset")


def test_a_duplicate_member_raises(tmp_path):
    with tarfile.open(tmp_path / "train-0.tar", "w") as file:
        for content in (b"one", b"two"):
            info = tarfile.TarInfo("0.txt")
            info.size = len(content)
            file.addfile(info, io.BytesIO(content))
    with pytest.raises(ManifestError, match=r"contains 0\.txt twice"):
        convert_copy(tmp_path, "webdataset")


@pytest.mark.parametrize("num_bytes", [0, 3, 700])
def test_a_truncated_shard_raises(tmp_path, num_bytes):
    content = write_tar(tmp_path / "train-0.tar", {"0.wav": WAV, "0.txt": b"words " * 200}).read_bytes()
    (tmp_path / "train-0.tar").write_bytes(content[:num_bytes])
    with pytest.raises(ManifestError, match=r"cannot be read as a tar archive|no rows to write"):
        convert_copy(tmp_path, "webdataset")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [("data.tar.zst", b"x", "dpkg-deb -x"), ("other", b"x", "no data.tar"), ("data.tar.xz", b"x", "cannot be read")],
)
def test_unreadable_packages_raise(tmp_path, name, content, message):
    with pytest.raises(ManifestError, match=message):
        convert_copy(write_deb(tmp_path / "stamps.deb", name, content), "tuxpaint", tmp_path / "m.csv")
    write_file(tmp_path / "no.deb", "text")
    with pytest.raises(ManifestError, match="is not a Debian package"):
        convert_copy(tmp_path / "no.deb", "tuxpaint", tmp_path / "m.csv")
