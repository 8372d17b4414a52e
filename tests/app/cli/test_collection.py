"""The `triptych collection` commands, and --root and --space of search and serve, as a new user types them."""

import json
import shutil
import sys
from types import SimpleNamespace

import pytest

from triptych.app.cli import main


@pytest.fixture
def triptych(monkeypatch, capsys):
    """Return a function that runs a command in this process, in a folder."""

    def run(*arguments, cwd):
        monkeypatch.chdir(cwd)
        monkeypatch.setattr(sys, "argv", ["triptych", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            main()
        out, err = capsys.readouterr()
        return SimpleNamespace(returncode=stop.value.code, stdout=out, stderr=err)

    return run


@pytest.fixture
def project(run_dir, synthetic_manifest, tmp_path, triptych):
    """A folder with a run, recordings and a collection, made in this folder."""
    folder = tmp_path / "project"
    (folder / "run").mkdir(parents=True)
    shutil.copy(run_dir / "space.safetensors", folder / "run")
    (folder / "recordings").mkdir()
    for path in sorted((synthetic_manifest.parent / "audio").iterdir())[:4]:
        shutil.copy(path, folder / "recordings")
    assert triptych("index", "recordings", "--space", "run", cwd=folder).returncode == 0
    return folder


def test_a_new_user_moves_everything(triptych, project, tmp_path):
    """Each answer works, or says exactly what to type."""
    shutil.rmtree(project / "run")
    archive = tmp_path / "mount"
    (project / "recordings").rename(archive)
    found = triptych("search", "a bell", "--json", cwd=project)
    assert len(json.loads(found.stdout)) == 4
    command = "triptych collection relocate collection --root recordings=FOLDER"
    assert f"does not exist (4 items); say where it is: {command}" in found.stderr
    given = triptych("search", "a bell", "--json", "--root", f"recordings={archive}", cwd=project)
    assert all(hit["file"].startswith(str(archive)) for hit in json.loads(given.stdout))
    assert given.stderr == ""
    assert command in triptych("collection", "info", cwd=project).stderr
    stored = triptych(*command.removeprefix("triptych ").replace("FOLDER", str(archive)).split(), cwd=project)
    assert stored.stdout == "collection: stored\n", stored.stderr
    assert triptych("search", "a bell", "--json", cwd=project).stderr == ""
    contents = json.loads(triptych("collection", "info", "--json", cwd=project).stdout)
    assert contents["roots"] == [{"name": "recordings", "path": str(archive), "is_missing": False, "num_items": 4}]
    again = triptych("index", archive, "--space", "collection/space.safetensors", cwd=project)
    assert "4 items (0 new, 4 unchanged, 0 removed)" in again.stdout, again.stderr


def test_export_and_import(triptych, project, tmp_path):
    exported = triptych("collection", "export", "collection", "-o", "all.triptych", cwd=project)
    assert exported.stdout.startswith("all.triptych: 4 items, ")
    assert "next, on another machine: triptych collection import all.triptych -o collection" in exported.stderr
    other = tmp_path / "other"
    other.mkdir()
    shutil.move(project / "all.triptych", other)
    imported = triptych("collection", "import", "all.triptych", "-o", "collection", cwd=other)
    assert "collection: 4 items, with the space" in imported.stdout
    assert "where is the folder recordings? triptych collection relocate collection" in imported.stderr
    root = ("--root", f"recordings={project / 'recordings'}")
    assert len(json.loads(triptych("search", "a bell", "--json", *root, cwd=other).stdout)) == 4
    content = (other / "all.triptych").read_bytes()
    (other / "all.triptych").write_bytes(content[:-100])
    cut = triptych("collection", "import", "all.triptych", "-o", "again", *root, cwd=other)
    assert cut.returncode == 2
    assert "all.triptych: cut short or not a collection file" in cut.stderr
    assert not (other / "again").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--root", "recordings=gone"], "no such folder"),
        (["--root", "recordings=run", "--root", "recordings=recordings"], "two folders for the root 'recordings'"),
        (["--root", "recording=recordings"], "root 'recording' is unknown; known: recordings"),
        (["--root", "recordings=run"], "4 of 4 compared files are missing there or differ"),
        (["--space", "gone"], "no such run folder or space file"),
        (["--root", "recordings"], "write NAME=PATH"),
    ],
)
def test_wrong_options_give_one_error(triptych, project, options, message):
    result = triptych("search", "a bell", *options, cwd=project)
    assert result.returncode == 2
    assert message in result.stderr
    assert result.stderr.count("error:") == 1
    assert "Traceback" not in result.stderr
