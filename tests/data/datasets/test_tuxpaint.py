"""Tux Paint stamps: rows, groups and Debian packages."""

import io
import tarfile

import pytest

from tests.data.dataset_replicas import REPLICAS, write_deb
from tests.data.datasets.conversion import convert_copy, convert_real, convert_with_notes, rows_by_id
from triptych.errors import UsageError


def test_tuxpaint_rows_are_audio_files_and_a_shared_caption_is_one_group(tmp_path):
    REPLICAS["tuxpaint"](tmp_path)
    converted, summary = convert_copy(tmp_path, "tuxpaint")
    by_id = rows_by_id(converted)
    assert set(by_id) == {"animals/dog:effect", "animals/dog:en", "animals/dog2", "plants/oak", "plants/fir:en"}
    assert len({by_id[name].group for name in ("animals/dog:effect", "animals/dog:en", "animals/dog2")}) == 1
    assert by_id["plants/fir:en"].image is None
    assert summary["skipped"] == {"images that exist as SVG only, which is not supported": 1}
    french, _ = convert_copy(tmp_path, "tuxpaint", tmp_path / "fr.csv", language="fr,es", audio="speech")
    assert rows_by_id(french)["animals/dog:fr"].texts == ("Un chien.",)
    assert rows_by_id(french)["animals/dog2"].group != rows_by_id(french)["animals/dog:fr"].group
    assert {row.id.partition(":")[0]: row.split for row in french.rows}["animals/dog"] == by_id["animals/dog2"].split
    with pytest.raises(UsageError, match="--language xx is unknown; known: en, es, fr, all"):
        convert_copy(tmp_path, "tuxpaint", language="xx")


def test_a_debian_package_gives_the_same_rows_as_its_tree(tmp_path):
    tree = tmp_path / "tree"
    REPLICAS["tuxpaint"](tree)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:xz") as file:
        file.add(tree, arcname=".")
    package = write_deb(tmp_path / "stamps.deb", "data.tar.xz", packed.getvalue())
    package_table, package_written, _ = convert_with_notes(package, "tuxpaint", tmp_path / "new/manifest.csv")
    tree_table, tree_written, _ = convert_with_notes(tree, "tuxpaint")
    assert [(row.id, row.texts, row.split) for row in package_table.rows] == [
        (row.id, row.texts, row.split) for row in tree_table.rows
    ]
    assert package_written.summary["test"] == tree_written.summary["test"]
    assert package_written.summary["skipped"] == tree_written.summary["skipped"]
    assert package_table.problems == ()


@pytest.mark.slow
def test_tuxpaint_where_it_is_installed(tmp_path):
    counts = convert_real("tuxpaint", tmp_path).counts
    assert counts.rows > 800
    assert counts.pairs["audio-image"] > 150
