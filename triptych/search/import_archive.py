"""Create a collection from an exported file. The collection appears only when it is complete."""

from __future__ import annotations

import glob
import secrets
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from triptych import checkpoint
from triptych.data.cache import Cache
from triptych.errors import CollectionError
from triptych.files import TEMP_SUFFIX, extract_os_error_code, lock, suggest_remedy
from triptych.progress import track_progress
from triptych.search.archive import ArchiveHeader, ArchiveReader, extract_space, open_archive
from triptych.search.collection_folder import check_writable_folder
from triptych.search.collection_space import MAX_SPACE_BYTES, copy_space
from triptych.search.item import METADATA_SCHEMA, item_from_row, make_schema
from triptych.search.lease import WriteAccess, acquire_write_access, local_folder
from triptych.search.locations import check_moved_roots
from triptych.search.roots import Roots, resolve_roots
from triptych.search.store import CollectionMetadata, Store, Writer

COLLECTION_EXISTS = "there is a collection already; give another folder with -o"
SPARE_DISK_FACTOR = 1.5  # free disk space that an import needs, as a multiple of the size of the file


def import_collection(
    path: Path, uri: str, roots: Mapping[str, str | Path] | None = None, show_progress: bool = True
) -> ArchiveHeader:
    """Create a collection at a URI from an exported file. `roots` contains the folders of its roots on this machine."""
    folder, moved_roots = local_folder(uri), resolve_roots(roots or {})
    if Store.open(uri) is not None:
        raise CollectionError(f"{uri}: {COLLECTION_EXISTS}")
    with open_archive(path) as reader:
        if folder is None:
            _write_collection(reader, uri, moved_roots, show_progress)
        else:
            _import_to_folder(reader, folder, moved_roots, show_progress)
        return reader.header


def _import_to_folder(
    reader: ArchiveReader, folder: Path, moved_roots: Mapping[str, Path], show_progress: bool
) -> None:
    """Write the collection to a temporary folder, which then gets its final name."""
    folder = folder.expanduser().absolute()
    check_writable_folder(folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with lock(folder.with_name(f".{folder.name}.import.lock")) as is_ours:
            if not is_ours:
                raise CollectionError(f"{folder}: another process imports into this folder; wait until it has ended")
            for stale in folder.parent.glob(f".{glob.escape(folder.name)}.import-*{TEMP_SUFFIX}"):
                shutil.rmtree(stale, ignore_errors=True)
            _write_and_rename(reader, folder, moved_roots, show_progress)
    except OSError as error:
        remedy = suggest_remedy(extract_os_error_code(error) or 0)
        raise CollectionError(f"{folder}: cannot be written ({error.strerror}); {remedy}") from error


def _write_and_rename(
    reader: ArchiveReader, folder: Path, moved_roots: Mapping[str, Path], show_progress: bool
) -> None:
    temp_folder = folder.with_name(f".{folder.name}.import-{secrets.token_hex(4)}{TEMP_SUFFIX}")
    try:
        temp_folder.mkdir()
        needed = int(SPARE_DISK_FACTOR * reader.path.stat().st_size)
        free = shutil.disk_usage(temp_folder).free
        if free < needed:
            problem = f"the disk has {free / 2**20:,.0f} MiB free; importing needs {needed / 2**20:,.0f} MiB"
            raise CollectionError(f"{folder}: {problem}")
        _write_collection(reader, str(temp_folder), moved_roots, show_progress)
        check_writable_folder(folder)
        if folder.exists():
            folder.rmdir()  # an empty folder; otherwise there is an OSError
        temp_folder.rename(folder)
    finally:
        shutil.rmtree(temp_folder, ignore_errors=True)


def _write_collection(reader: ArchiveReader, uri: str, moved_roots: Mapping[str, Path], show_progress: bool) -> None:
    roots = Roots(dict.fromkeys(reader.header.roots))
    roots.check_names(moved_roots)
    with acquire_write_access(uri) as access:
        if Store.open(uri) is not None:  # another process may have created the table
            raise CollectionError(f"{uri}: {COLLECTION_EXISTS}")
        try:
            _write_table(reader, uri, roots, moved_roots, access, show_progress)
        except BaseException:
            Writer.drop_table(uri, access)
            raise


def _write_table(
    reader: ArchiveReader, uri: str, roots: Roots, moved_roots: Mapping[str, Path], access: WriteAccess,
    show_progress: bool,
) -> None:  # fmt: skip
    header = reader.header
    metadata = CollectionMetadata(header.space_path, header.fingerprint, header.space_revision)
    if header.contains_space:
        with extract_space(reader) as space_path:
            if checkpoint.compute_fingerprint(space_path) != header.fingerprint:
                raise reader.make_error("the space has another fingerprint than the collection")
            if not copy_space(uri, space_path, header.fingerprint):
                raise reader.make_error(f"the space is larger than {MAX_SPACE_BYTES / 2**20:.0f} MiB")
    writer = Writer.create(uri, metadata, header.key_dim, access)
    writer.set_roots(roots)
    ids, last_row_id = set[str](), -1
    with track_progress("importing", header.num_items, show_progress) as progress_bar:
        for rows in reader.iter_rows():
            writer.append(_make_table(reader, rows, roots))
            row_ids = [row["row_id"] for row in rows]
            ids.update(row["id"] for row in rows)
            if row_ids[0] <= last_row_id or row_ids != sorted(set(row_ids)):
                raise reader.make_error("row ids are not ascending")
            last_row_id = row_ids[-1]
            progress_bar.advance(len(rows))
    if len(ids) != header.num_items or last_row_id >= header.next_row_id:
        raise reader.make_error("ids of items are not unique")
    writer.set_next_row_id(header.next_row_id)
    writer.store.refresh()
    check_moved_roots(writer.store, moved_roots, Cache.default())
    writer.set_roots(roots.replace(moved_roots))
    writer.optimize()


def _make_table(reader: ArchiveReader, rows: Sequence[dict[str, Any]], roots: Roots) -> pa.Table:
    """Convert rows to a table. Raise a CollectionError if a value has a wrong type, or an id does not fit its item."""
    key_dim = reader.header.key_dim
    keys = np.frombuffer(b"".join(row["vector"] for row in rows), "<f4")
    schema = make_schema(key_dim)
    try:
        table = pa.Table.from_pylist(
            [{name: row[name] for name in METADATA_SCHEMA.names} for row in rows], METADATA_SCHEMA
        )
        for row in rows:
            if type(row["row_id"]) is not int or item_from_row(row, roots).id != row["id"]:
                raise reader.make_error(f"the id {row['id']!r} does not fit its item")
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, pa.ArrowException) as error:
        raise reader.make_error(f"an item has an invalid value: {error}") from error
    vectors = {
        "vector": pa.FixedSizeListArray.from_arrays(pa.array(keys, pa.float32()), key_dim),
        **{name: pa.array([row[name] for row in rows], schema.field(name).type) for name in ("embedding", "parts")},
    }
    for name, values in vectors.items():
        table = table.append_column(name, values)
    return table
