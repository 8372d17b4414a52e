"""Terminal output about collections: every missing folder or space comes with the command to type."""

from triptych.app import collections
from triptych.search.archive import ArchiveHeader
from triptych.search.collection_info import CollectionContents, RootInfo


def test_the_contents_name_missing_roots_and_the_command(capsys):
    roots = [RootInfo("a b", None, True, 3), RootInfo("mine", "/mine", False, 1200), RootInfo("old", "/old", True, 0)]
    collections.print_collection(
        CollectionContents("c", 6, {"image": 1200, "text": 3}, roots, "hf:a/b", "0" * 40, "f" * 16, None, 1_400_000)
    )
    out, err = capsys.readouterr()
    assert "c: 1,203 items (1,200 image, 3 text)" in out
    assert "1.4 MB, format 6" in out
    assert f"hf:a/b (not in the collection, revision {'0' * 40}, fingerprint {'f' * 16})" in out
    assert "a b = not known (missing), 3 items" in out
    assert "old = /old (missing), 0 items" in out
    assert err == "root a b is missing: triptych collection relocate c --root 'a b'=FOLDER\n"


def test_an_import_without_folders_and_space_says_what_to_type(capsys, tmp_path):
    header = ArchiveHeader("f" * 16, "", None, 8, 3, 3, ["mine", "other"])
    collections.print_imported("c", header, {"other": tmp_path})
    out, err = capsys.readouterr()
    assert out == "c: 3 items, without the space\n"
    assert "where is the folder mine? triptych collection relocate c --root mine=FOLDER" in err
    assert "other" not in err
    assert f"give the space with fingerprint {'f' * 16}: triptych collection relocate c --space PATH" in err


def test_sizes():
    assert [collections.format_size(n) for n in (0, 99_000, 1_400_000)] == ["0.0 kB", "99.0 kB", "1.4 MB"]
