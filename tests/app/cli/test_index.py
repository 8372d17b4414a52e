"""The `triptych index` command."""

import json
import shutil

import pytest

from tests.app.cli.run_cli import triptych

pytestmark = pytest.mark.slow


def test_index_then_search(run_dir, synthetic_manifest, tmp_path):
    collection = tmp_path / "collection"
    result = triptych("index", synthetic_manifest.parent / "images", "--space", run_dir, "--collection", collection)
    assert result.returncode == 0, result.stderr
    assert "80 items (80 new, 0 unchanged, 0 removed)" in result.stdout
    image = synthetic_manifest.parent / "images" / "000003.png"
    arguments = ["search", "--image", image, "--collection", collection, "-k", "2", "--json"]
    result = triptych(*arguments)
    hits = json.loads(result.stdout)
    assert str(image.resolve()) not in {hit["file"] for hit in hits}
    assert "is in the collection (000003.png) and is not shown; --include-query shows it" in result.stderr
    assert [hit["modality"] for hit in hits] == ["image", "image"]
    result = triptych(*arguments, "--include-query")
    assert json.loads(result.stdout)[0]["file"] == str(image.resolve())
    assert "is not shown" not in result.stderr
    result = triptych("search", "two red bells", "--collection", collection, "-k", "3")
    assert result.stdout.count(".png") == 3
    assert "no matching items" in triptych("search", "bells", "--collection", collection, "--modality", "audio").stderr


def test_index_reports_skipped_files(run_dir, synthetic_manifest, tmp_path):
    folder, collection = tmp_path / "folder", tmp_path / "folder" / "collection"
    folder.mkdir()
    shutil.copy(synthetic_manifest.parent / "images" / "000000.png", folder)
    for number in range(7):
        (folder / f"broken {number}.wav").write_text("no sound")
    for name in ("a.svg", "b.SVG", "c.psd", "LICENSE"):
        (folder / name).write_text("x")
    for _ in range(2):  # the second time the collection is in the folder
        result = triptych("index", folder, "--space", run_dir, "--collection", collection, cwd=tmp_path)
        assert result.returncode == 0, result.stderr
        assert "skipped: 2 .svg, 1 no extension, 1 .psd (unsupported format" in result.stderr
        assert "unreadable files skipped: 7" in result.stderr
        assert result.stderr.count("folder/collection/not-indexed.tsv") == 2
        assert len((collection / "not-indexed.tsv").read_text().splitlines()) == 12
    for path in (*folder.glob("broken*"), *folder.glob("*.[sSp][vVs]*"), folder / "LICENSE"):
        path.unlink()
    result = triptych("index", folder, "--space", run_dir, "--collection", collection)
    assert "not-indexed.tsv" not in result.stderr
    assert not (collection / "not-indexed.tsv").exists()


def test_index_reports_unsupported_suffixes(run_dir, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a.svg").write_text("x")
    result = triptych("index", tmp_path / "folder", "--space", run_dir, "--collection", tmp_path / "c")
    assert result.returncode == 2
    assert "skipped: 1 .svg" in result.stderr
    assert "contains nothing that this space can embed" in result.stderr
    assert not (tmp_path / "c").exists()
