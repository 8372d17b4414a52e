"""Roots: locations of paths and paths of locations, folders that move, and names and paths that are refused."""

from pathlib import Path

import pytest

from triptych.errors import CollectionError, UsageError
from triptych.search.roots import Roots, decode_roots, encode_roots, parse_roots, resolve_roots

ROOTS = Roots({"archive": Path("/archive"), "field": Path("/archive/field"), "lost": None})


@pytest.mark.parametrize(
    ("path", "location"),
    [
        ("/archive/a.wav", "archive/a.wav"),
        ("/archive/old/b/a.wav", "archive/old/b/a.wav"),
        ("/archive/field/a.wav", "field/a.wav"),
        ("/archive/fields/a.wav", "archive/fields/a.wav"),
        ("/archive", "archive"),
        ("/archive2/a.wav", None),
        ("/a.wav", None),
    ],
)
def test_a_file_belongs_to_the_deepest_root(path, location):
    assert ROOTS.find_location(Path(path)) == location
    if location is not None:
        assert ROOTS.find_path(location) == Path(path)


@pytest.mark.parametrize(
    "location",
    ["archive/../etc/passwd", "/etc/passwd", "archive//etc", "archive/./a", "other/a.wav", "", "..", "archive/a\0"],
)
def test_a_location_outside_the_roots_raises(location):
    with pytest.raises(CollectionError, match="is not in a root of the collection"):
        ROOTS.find_path(location)


def test_the_path_in_an_unknown_folder_is_the_location():
    assert ROOTS.find_path("lost/a/b.wav") == Path("lost/a/b.wav")
    assert ROOTS.is_missing("lost")


def test_roots_inside_a_moved_root_move_with_it_unless_they_are_given():
    moved = ROOTS.replace({"archive": Path("/mnt")})
    assert moved.paths == {"archive": Path("/mnt"), "field": Path("/mnt/field"), "lost": None}
    both = ROOTS.replace({"archive": Path("/mnt"), "field": Path("/else")})
    assert both.paths["field"] == Path("/else")
    assert ROOTS.replace({"field": Path("/else")}).paths["archive"] == Path("/archive")


def test_new_roots_get_the_name_of_their_folder_made_unique():
    roots = Roots().add(Path("/a/rec")).add(Path("/b/rec")).add(Path("/c/rec")).add(Path("/"))
    assert list(roots.paths) == ["rec", "rec-2", "rec-3", "root"]
    assert list(Roots().add(Path("/a/x=y")).add(Path("/z"), "mine").paths) == ["x-y", "mine"]


def test_locations_below_a_folder():
    assert ROOTS.find_locations_below("/archive/old") == ["archive/old"]
    assert ROOTS.find_locations_below("/archive") == ["archive", "field"]
    assert ROOTS.find_locations_below("/") == ["archive", "field"]
    assert ROOTS.find_locations_below("field/sub") == ["field/sub"]
    assert ROOTS.find_locations_below("/elsewhere") == []


def test_roots_move_with_the_collection(tmp_path):
    """The project folder is renamed: the absolute path has gone, the relative one leads to the folder."""
    project = tmp_path / "project"
    (project / "recordings").mkdir(parents=True)
    records = encode_roots(Roots({"rec": project / "recordings", "lost": None}), project / "collection")
    assert records == {"rec": {"path": str(project / "recordings"), "relative": "../recordings"}, "lost": {}}
    assert decode_roots(records, project / "collection").paths == {"rec": project / "recordings", "lost": None}
    project.rename(tmp_path / "renamed")
    moved = decode_roots(records, tmp_path / "renamed" / "collection")
    assert moved.paths["rec"] == tmp_path / "renamed" / "recordings"
    assert decode_roots(records, None).paths["rec"] == project / "recordings"
    assert decode_roots(records, None).missing_names() == ["lost", "rec"]


def test_invalid_options_raise(tmp_path):
    (tmp_path / "a").mkdir()
    assert parse_roots([f"x={tmp_path}/a"]) == {"x": tmp_path / "a"}
    for pairs, message in [
        ([f"x={tmp_path}", f"x={tmp_path}/a"], r"two folders for the root 'x'; give --root x=PATH once"),
        ([f"x={tmp_path}", f"y={tmp_path}"], "another --root has the same folder"),
        ([f"x={tmp_path}/gone"], "no such folder"),
        ([f"a/b={tmp_path}"], "'a/b' is not a name"),
        (["x"], "write NAME=PATH"),
        (["x="], "write NAME=PATH"),
    ]:
        with pytest.raises(UsageError, match=message):
            parse_roots(pairs)
    with pytest.raises(UsageError, match="is not a name"):
        resolve_roots({"..": tmp_path})
    with pytest.raises(UsageError, match=r"root 'feild' is unknown; .*did you mean 'field'"):
        ROOTS.check_names(["feild"])
