"""Archives of strangers: what they may not do, and that nothing is written where it should not be."""

import gzip
import io
import tarfile

import pyarrow
import pytest
from pyarrow import parquet

from tests.data.dataset_replicas import REPLICAS, WAV, png_bytes, write_file, write_tar
from triptych.data import manifest
from triptych.data.sources import SOURCES, archive
from triptych.data.sources.convert import convert
from triptych.errors import ManifestError


def convert_copy(root, source="webdataset", output=None):
    written, draft = convert(source, SOURCES[source], root, output, show_progress=False)
    return manifest.read(written.path), written, draft


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
def test_members_outside_the_folder_and_links_raise(tmp_path, name, fields):
    root = tmp_path / "copy"
    special(root / "train-0.tar", name, **fields)
    with pytest.raises(ManifestError, match="unpacking stopped"):
        convert_copy(root)
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
        convert_copy(root)
    assert list((tmp_path / "elsewhere").iterdir()) == []


def tar_header(type_flag, size, name="0.wav", fields=()):
    """One block of a tar archive, with fields set at their places."""
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
    """A pax header with some records."""
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
        convert_copy(tmp_path)
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
    monkeypatch.setattr("triptych.data.sources.webdataset._is_supported_member", lambda name: False)
    write_file(tmp_path / "train-0.tar.gz", gzip.compress(headers + GOOD_MEMBER))
    with pytest.raises(ManifestError, match=message):
        convert_copy(tmp_path)


@pytest.mark.parametrize("name", ["0.wav", "not-wanted.pdf"])
def test_content_far_larger_than_its_archive_raises(tmp_path, name):
    content = bytes(archive.EXPANSION_ALLOWANCE + (4 << 20))
    write_file(tmp_path / "train-0.tar.gz", gzip.compress(tar_header(b"0", len(content), name) + content + GOOD_MEMBER))
    with pytest.raises(ManifestError, match=r"unpacks to more than .* 100 times its size; unpacking stopped"):
        convert_copy(tmp_path)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["train-0.tar.gz"]


def test_content_far_larger_than_its_parquet_file_raises(tmp_path):
    cells = [{"bytes": WAV + bytes(archive.EXPANSION_ALLOWANCE // 2) + bytes([n]), "path": None} for n in range(3)]
    table = pyarrow.table({"audio": cells, "text": ["a", "b", "c"]})
    parquet.write_table(table, tmp_path / "train-0.parquet", compression="zstd")
    with pytest.raises(ManifestError, match="100 times its size"):
        convert_copy(tmp_path, "hf")
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["train-0.parquet"]


@pytest.mark.parametrize(("limit", "value"), [("MAX_MEMBERS", 1), ("MAX_MEMBER_BYTES", 40), ("MAX_TOTAL_BYTES", 48)])
def test_archives_above_the_limits_raise(tmp_path, monkeypatch, limit, value):
    write_tar(tmp_path / "train-0.tar", {"0.wav": WAV, "0.txt": b"words"})
    monkeypatch.setattr(archive, limit, value)
    with pytest.raises(ManifestError, match=r"too large|more than"):
        convert_copy(tmp_path)


def test_a_duplicate_member_raises(tmp_path):
    with tarfile.open(tmp_path / "train-0.tar", "w") as file:
        for content in (b"one", b"two"):
            info = tarfile.TarInfo("0.txt")
            info.size = len(content)
            file.addfile(info, io.BytesIO(content))
    with pytest.raises(ManifestError, match=r"contains 0\.txt twice"):
        convert_copy(tmp_path)


@pytest.mark.parametrize("num_bytes", [0, 3, 700])
def test_a_truncated_shard_raises(tmp_path, num_bytes):
    content = write_tar(tmp_path / "train-0.tar", {"0.wav": WAV, "0.txt": b"words " * 200}).read_bytes()
    (tmp_path / "train-0.tar").write_bytes(content[:num_bytes])
    with pytest.raises(ManifestError, match=r"cannot be read as a tar archive|no row is left"):
        convert_copy(tmp_path)


def test_webdataset_samples(tmp_path):
    REPLICAS["webdataset"](tmp_path)
    table, _, draft = convert_copy(tmp_path)
    rows = {row.id: row for row in table.rows}
    assert set(rows) == {"train-000000/0001", "train-000000/0002", "sub/test-000000/a/0001"}
    assert rows["train-000000/0001"].texts == ("a dog", "it barks")
    assert (rows["train-000000/0002"].label, rows["train-000000/0002"].split) == ("7", "train")
    assert rows["sub/test-000000/a/0001"].split == "test"
    assert draft.notes == [f"unpacked to {tmp_path / 'manifest_files'}"]
    assert not list(tmp_path.rglob("*.pdf"))


def test_unpacked_files_are_reused_and_partial_ones_rewritten(tmp_path):
    REPLICAS["webdataset"](tmp_path)
    convert_copy(tmp_path)
    unpacked = tmp_path / "manifest_files/train-000000"
    before = (unpacked / "0001.flac").stat().st_mtime_ns
    write_file(unpacked / "0002.wav", WAV[:9])
    convert_copy(tmp_path)
    assert (unpacked / "0001.flac").stat().st_mtime_ns == before
    assert (unpacked / "0002.wav").read_bytes() == WAV


def test_data_without_splits_is_split_by_hash_with_a_note(tmp_path):
    members = {
        f"{n:04d}{ending}": content for n in range(60) for ending, content in ((".png", png_bytes(n)), (".txt", b"x"))
    }
    write_tar(tmp_path / "pairs.tar", members)
    table, _, draft = convert_copy(tmp_path)
    assert set(table.counts.splits) == {"train", "valid", "test"}
    assert any("the dataset has no splits" in note for note in draft.notes)


def write_deb(path, name, content):
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
    REPLICAS["tuxpaint"](tree)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:xz") as file:
        file.add(tree, arcname=".")
    package = write_deb(tmp_path / "stamps.deb", "data.tar.xz", packed.getvalue())
    package_table, package_written, _ = convert_copy(package, "tuxpaint", tmp_path / "new/manifest.csv")
    tree_table, tree_written, _ = convert_copy(tree, "tuxpaint")
    assert [(row.id, row.texts, row.split) for row in package_table.rows] == [
        (row.id, row.texts, row.split) for row in tree_table.rows
    ]
    assert package_written.summary["test"] == tree_written.summary["test"]
    assert package_written.summary["skipped"] == tree_written.summary["skipped"]
    assert package_table.problems == ()


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
