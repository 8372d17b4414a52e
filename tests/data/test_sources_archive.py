"""Archives of strangers: what they may not do, and that nothing is written where it should not be."""

import gzip
import io
import tarfile

import pyarrow
import pytest
from pyarrow import parquet

from tests.data.source_copies import COPIES, WAV, picture, put, shard
from triptych.data import manifest
from triptych.data.sources import SOURCES, archive
from triptych.data.sources.convert import convert
from triptych.errors import ManifestError


def make(root, source="webdataset", output=None):
    made, draft = convert(source, SOURCES[source], root, output, show=False)
    return manifest.read(made.path), made, draft


def special(path, name, **fields):
    """A tar file with a good sample and one member that is no plain file, or has a bad name."""
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
def test_members_that_climb_out_or_link_are_refused(tmp_path, name, fields):
    root = tmp_path / "copy"
    special(root / "train-0.tar", name, **fields)
    with pytest.raises(ManifestError, match="nothing more is unpacked"):
        make(root)
    outside = {path.name for path in tmp_path.rglob("*") if "manifest_files" not in path.parts}
    assert outside == {"copy", "train-0.tar"}
    assert not any(path.is_symlink() or "evil" in path.name for path in tmp_path.rglob("*"))


def test_a_link_that_waits_in_the_folder_is_not_followed(tmp_path):
    root = tmp_path / "copy"
    shard(root / "train-0.tar", {"a/0.wav": WAV, "a/0.txt": b"words"})
    (tmp_path / "elsewhere").mkdir()
    (root / "manifest_files/train-0").mkdir(parents=True)
    (root / "manifest_files/train-0/a").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ManifestError, match="would be written outside"):
        make(root)
    assert list((tmp_path / "elsewhere").iterdir()) == []


def header(type_flag, size, name="0.wav", fields=()):
    """One block of a tar archive, with fields set at their places."""
    info = tarfile.TarInfo(name)
    info.size, info.type = size, type_flag
    block = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    for place, content in fields:
        block[place : place + len(content)] = content
    block[148:156] = b"%06o\0 " % (256 + sum(block[:148]) + sum(block[156:]))
    return bytes(block)


def padded(content):
    return content + b"\0" * (-len(content) % 512)


def pax(records, type_flag=tarfile.XHDTYPE):
    """A pax header with some records."""
    content = b""
    for keyword, value in records.items():
        rest = len(f" {keyword}={value}\n")
        length = next(n for n in range(rest, rest + 20) if n == rest + len(str(n)))
        content += f"{length} {keyword}={value}\n".encode()
    return header(type_flag, len(content), "pax") + padded(content)


GOOD = header(b"0", len(WAV)) + padded(WAV) + bytes(1024)
CLAIMED = 1_900_000_000
MAP_BEFORE_DATA = {"GNU.sparse.major": 1, "GNU.sparse.minor": 0}
SPARSE = {
    "gnu": header(
        tarfile.GNUTYPE_SPARSE,
        512,
        fields=[(386, b"%011o\0%011o\0" % (CLAIMED - 512, 512)), (483, b"%011o\0" % CLAIMED)],
    ),
    "pax 0.1": pax({"GNU.sparse.size": CLAIMED, "GNU.sparse.map": f"{CLAIMED - 512},512"}) + header(b"0", 512),
    "pax 1.0": pax({**MAP_BEFORE_DATA, "GNU.sparse.realsize": CLAIMED})
    + header(b"0", 1024)
    + padded(f"1\n{CLAIMED - 512}\n512\n".encode()),
}


@pytest.mark.parametrize("form", SPARSE)
def test_sparse_members_write_nothing(tmp_path, form):
    put(tmp_path / "train-0.tar", SPARSE[form] + b"x" * 512 + bytes(1024))
    with pytest.raises(ManifestError, match=r"0\.wav is a sparse file; nothing more is unpacked"):
        make(tmp_path)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["train-0.tar"]


LONG = archive.LONGEST_HEADER


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        (pax({"comment": "a" * LONG}), "a header of more than"),
        (header(tarfile.GNUTYPE_LONGNAME, LONG) + padded(b"a" * LONG), "a header of more than"),
        (header(tarfile.GNUTYPE_LONGNAME, 300 << 20), "a header of more than"),
        (pax(MAP_BEFORE_DATA) + header(b"0", LONG) + padded(b"9999999\n" + b"0\n" * LONG), "a header of more than"),
        (header(tarfile.XHDTYPE, 0, "pax") * 500, "recursion"),
        (b"".join(pax({f"k{n}": "a" * 60_000}, tarfile.XGLTYPE) + GOOD[:-1024] for n in range(6)), "global headers"),
    ],
    ids=["pax", "long name", "claimed long name", "sparse map", "chain of headers", "global headers"],
)
def test_headers_are_not_read_into_memory_without_bound(tmp_path, monkeypatch, headers, message):
    monkeypatch.setattr("triptych.data.sources.webdataset._is_wanted", lambda name: False)
    put(tmp_path / "train-0.tar.gz", gzip.compress(headers + GOOD))
    with pytest.raises(ManifestError, match=message):
        make(tmp_path)


@pytest.mark.parametrize("name", ["0.wav", "not-wanted.pdf"])
def test_content_far_larger_than_its_archive_is_refused(tmp_path, name):
    content = bytes(archive.FREE_BYTES + (4 << 20))
    put(tmp_path / "train-0.tar.gz", gzip.compress(header(b"0", len(content), name) + content + GOOD))
    with pytest.raises(ManifestError, match=r"unpacks to more than .* 100 times its size; nothing more is unpacked"):
        make(tmp_path)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["train-0.tar.gz"]


def test_content_far_larger_than_its_parquet_file_is_refused(tmp_path):
    cells = [{"bytes": WAV + bytes(archive.FREE_BYTES // 2) + bytes([n]), "path": None} for n in range(3)]
    table = pyarrow.table({"audio": cells, "text": ["a", "b", "c"]})
    parquet.write_table(table, tmp_path / "train-0.parquet", compression="zstd")
    with pytest.raises(ManifestError, match="100 times its size"):
        make(tmp_path, "hf")
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["train-0.parquet"]


@pytest.mark.parametrize(("limit", "value"), [("MOST_MEMBERS", 1), ("MOST_BYTES", 40), ("MOST_IN_ALL", 48)])
def test_archives_without_end_are_refused(tmp_path, monkeypatch, limit, value):
    shard(tmp_path / "train-0.tar", {"0.wav": WAV, "0.txt": b"words"})
    monkeypatch.setattr(archive, limit, value)
    with pytest.raises(ManifestError, match=r"too large|more than"):
        make(tmp_path)


def test_a_member_that_comes_twice_is_refused(tmp_path):
    with tarfile.open(tmp_path / "train-0.tar", "w") as file:
        for content in (b"one", b"two"):
            info = tarfile.TarInfo("0.txt")
            info.size = len(content)
            file.addfile(info, io.BytesIO(content))
    with pytest.raises(ManifestError, match=r"holds 0\.txt twice"):
        make(tmp_path)


@pytest.mark.parametrize("kept", [0, 3, 700])
def test_a_shard_that_is_cut_short_says_so(tmp_path, kept):
    whole = shard(tmp_path / "train-0.tar", {"0.wav": WAV, "0.txt": b"words " * 200}).read_bytes()
    (tmp_path / "train-0.tar").write_bytes(whole[:kept])
    with pytest.raises(ManifestError, match=r"cannot be read as a tar archive|no row is left"):
        make(tmp_path)


def test_webdataset_samples(tmp_path):
    COPIES["webdataset"](tmp_path)
    found, _, draft = make(tmp_path)
    rows = {row.id: row for row in found.rows}
    assert set(rows) == {"train-000000/0001", "train-000000/0002", "sub/test-000000/a/0001"}
    assert rows["train-000000/0001"].texts == ("a dog", "it barks")
    assert (rows["train-000000/0002"].label, rows["train-000000/0002"].split) == ("7", "train")
    assert rows["sub/test-000000/a/0001"].split == "test"
    assert draft.notes == [f"unpacked into {tmp_path / 'manifest_files'}"]
    assert not list(tmp_path.rglob("*.pdf"))


def test_unpacked_files_are_kept_and_half_ones_made_again(tmp_path):
    COPIES["webdataset"](tmp_path)
    make(tmp_path)
    unpacked = tmp_path / "manifest_files/train-000000"
    before = (unpacked / "0001.flac").stat().st_mtime_ns
    put(unpacked / "0002.wav", WAV[:9])
    make(tmp_path)
    assert (unpacked / "0001.flac").stat().st_mtime_ns == before
    assert (unpacked / "0002.wav").read_bytes() == WAV


def test_data_without_splits_is_split_by_a_hash_that_is_told(tmp_path):
    members = {
        f"{n:04d}{ending}": content for n in range(60) for ending, content in ((".png", picture(n)), (".txt", b"x"))
    }
    shard(tmp_path / "pairs.tar", members)
    found, _, draft = make(tmp_path)
    assert set(found.counts.splits) == {"train", "valid", "test"}
    assert any("no split is named" in note for note in draft.notes)


def deb(path, name, content):
    """A Debian package whose files are one tar archive."""
    parts = [("debian-binary", b"2.0\n"), ("control.tar.xz", b"odd"), (name, content)]
    header = "{:<16}{:<12}{:<6}{:<6}{:<8}{:<10}`\n"
    with path.open("wb") as file:
        file.write(b"!<arch>\n")
        for entry, data in parts:
            file.write(header.format(entry, 0, 0, 0, "100644", len(data)).encode() + data + b"\n" * (len(data) % 2))
    return path


def test_a_debian_package_gives_the_same_rows_as_its_tree(tmp_path):
    tree = tmp_path / "tree"
    COPIES["tuxpaint"](tree)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:xz") as file:
        file.add(tree, arcname=".")
    package = deb(tmp_path / "stamps.deb", "data.tar.xz", packed.getvalue())
    found, made, _ = make(package, "tuxpaint", tmp_path / "new/manifest.csv")
    other, same, _ = make(tree, "tuxpaint")
    assert [(row.id, row.texts, row.split) for row in found.rows] == [
        (row.id, row.texts, row.split) for row in other.rows
    ]
    assert made.summary["test"] == same.summary["test"]
    assert made.summary["left_out"] == same.summary["left_out"]
    assert found.problems == ()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [("data.tar.zst", b"x", "dpkg-deb -x"), ("other", b"x", "no data.tar"), ("data.tar.xz", b"x", "cannot be read")],
)
def test_packages_that_cannot_be_read_say_what_to_do(tmp_path, name, content, message):
    with pytest.raises(ManifestError, match=message):
        make(deb(tmp_path / "stamps.deb", name, content), "tuxpaint", tmp_path / "m.csv")
    put(tmp_path / "no.deb", "text")
    with pytest.raises(ManifestError, match="is not a Debian package"):
        make(tmp_path / "no.deb", "tuxpaint", tmp_path / "m.csv")
