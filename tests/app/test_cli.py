"""The command line as a user meets it: real processes, what they print, and what a mistake gets."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

from triptych import __version__
from triptych.app.cli import COMMANDS

pytestmark = pytest.mark.slow


def triptych(*arguments, cwd=None, timeout=120):
    return subprocess.run(
        [sys.executable, "-m", "triptych", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        cwd=cwd,
        env={**os.environ, "COLUMNS": "100", "OMP_NUM_THREADS": "1"},
    )


def test_help_and_import_do_not_load_torch():
    for code in ("import triptych", "from triptych.app.cli import app", "import triptych.data.manifest"):
        check = f"{code}; import sys; sys.exit('torch' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0, code


@pytest.mark.parametrize(("option", "printed"), [("--help", "Usage"), ("--version", f"triptych {__version__}")])
def test_help_and_version_load_only_what_they_print_with(option, printed):
    """What keeps it within half a second (`python -m bench startup`), on a machine however busy."""
    code = f"""
import contextlib, runpy, sys
sys.argv = ["triptych", "{option}"]
with contextlib.suppress(SystemExit):
    runpy.run_module("triptych", run_name="__main__")
print(*{{name.partition(".")[0] for name in sys.modules}} - set(sys.stdlib_module_names))
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert printed in result.stdout
    loaded = {name for name in result.stdout.splitlines()[-1].split() if not name.startswith("_")}
    printing = {"annotated_doc", "click", "markdown_it", "mdurl", "pygments", "rich", "shellingham", "typer"}
    # With pydantic installed, typer parses the values of options by it.
    parsing = {"annotated_types", "pydantic", "pydantic_core", "typing_extensions", "typing_inspection"}
    assert loaded <= {"triptych", "site", "sitecustomize", *printing, *(parsing if option == "--version" else ())}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_examples(command):
    result = triptych(command, "--help")
    assert result.returncode == 0
    assert f"triptych {command}" in result.stdout
    if command != "demo":
        assert "Examples:" in result.stdout


def test_the_installed_script_and_the_version():
    script = shutil.which("triptych", path=os.path.dirname(sys.executable))  # noqa: PTH120
    assert script
    result = subprocess.run([script, "--version"], capture_output=True, text=True, check=True)
    assert result.stdout == f"triptych {__version__}\n"


def test_index_then_search(run_dir, synthetic_manifest, tmp_path):
    collection = tmp_path / "collection"
    result = triptych("index", synthetic_manifest.parent / "images", "--space", run_dir, "--collection", collection)
    assert result.returncode == 0, result.stderr
    assert "80 items (80 new, 0 unchanged, 0 removed)" in result.stdout
    picture = synthetic_manifest.parent / "images" / "000003.png"
    asked = ["search", "--image", picture, "--collection", collection, "-k", "2", "--json"]
    result = triptych(*asked)
    hits = json.loads(result.stdout)
    assert str(picture.resolve()) not in {hit["file"] for hit in hits}
    assert "is in the collection (000003.png) and is not shown; --include-query shows it" in result.stderr
    assert [hit["modality"] for hit in hits] == ["image", "image"]
    result = triptych(*asked, "--include-query")
    assert json.loads(result.stdout)[0]["file"] == str(picture.resolve())
    assert "is not shown" not in result.stderr
    result = triptych("search", "two red bells", "--collection", collection, "-k", "3")
    assert result.stdout.count(".png") == 3
    assert "no matching items" in triptych("search", "bells", "--collection", collection, "--modality", "audio").stderr


def test_index_reports_skipped_files(run_dir, synthetic_manifest, tmp_path):
    mine, collection = tmp_path / "mine", tmp_path / "mine" / "collection"
    mine.mkdir()
    shutil.copy(synthetic_manifest.parent / "images" / "000000.png", mine)
    for number in range(7):
        (mine / f"broken {number}.wav").write_text("no sound")
    for name in ("a.heic", "b.HEIC", "c.psd", "LICENSE"):
        (mine / name).write_text("x")
    for _ in range(2):  # the second time the collection is in the folder
        result = triptych("index", mine, "--space", run_dir, "--collection", collection, cwd=tmp_path)
        assert result.returncode == 0, result.stderr
        assert "skipped: 2 .heic, 1 without an ending, 1 .psd (triptych does not read" in result.stderr
        assert "unreadable files skipped: 7" in result.stderr
        assert result.stderr.count("mine/collection/not-indexed.tsv") == 2
        assert len((collection / "not-indexed.tsv").read_text().splitlines()) == 12
    for path in (*mine.glob("broken*"), *mine.glob("*.[hHp][eEs]*"), mine / "LICENSE"):
        path.unlink()
    result = triptych("index", mine, "--space", run_dir, "--collection", collection)
    assert "not-indexed.tsv" not in result.stderr
    assert not (collection / "not-indexed.tsv").exists()


def test_index_reports_unsupported_suffixes(run_dir, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "a.heic").write_text("x")
    result = triptych("index", tmp_path / "mine", "--space", run_dir, "--collection", tmp_path / "c")
    assert result.returncode == 2
    assert "skipped: 1 .heic" in result.stderr
    assert "nothing here that this space can embed" in result.stderr
    assert not (tmp_path / "c").exists()


def test_file_names_that_are_not_utf8(run_dir, synthetic_manifest, tmp_path):
    collection, sound = tmp_path / "c", tmp_path / os.fsdecode(b"q\xff.wav")
    assert (
        triptych(
            "index", synthetic_manifest.parent / "audio", "--space", run_dir, "--collection", collection
        ).returncode
        == 0
    )
    shutil.copy(synthetic_manifest.parent / "audio" / "000003.wav", sound)
    for asked in (["--audio", sound], ["bell", "--not", sound]):
        result = triptych("search", *asked, "--collection", collection, "-k", "2", "--json")
        assert result.returncode == 0, result.stderr
        assert len(json.loads(result.stdout)) == 2
    for asked in (["--item", sound.name], ["bell", "--folder", sound.name], ["bell", "--where", f"{sound.name}=1"]):
        result = triptych("search", *asked, "--collection", collection)
        assert result.returncode == 2
        assert "is not UTF-8" in result.stderr
        assert "damaged" not in result.stderr


def test_search_shows_segment_without_end(run_dir, synthetic_manifest, tmp_path):
    sound = next((synthetic_manifest.parent / "audio").iterdir())
    shutil.copy(sound, tmp_path / "s.wav")
    (tmp_path / "pairs.csv").write_text("audio,text,start\ns.wav,a bell,0.5\n")
    assert triptych("index", tmp_path / "pairs.csv", "--space", run_dir, "--collection", tmp_path / "c").returncode == 0
    result = triptych("search", "a", "bell", "--collection", tmp_path / "c", "--modality", "audio")
    assert "s.wav [0.5–end s]" in result.stdout, result.stderr


def test_evaluate_prints_six_directions(run_dir, synthetic_manifest):
    result = triptych("evaluate", run_dir, "--data", synthetic_manifest)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("→") == 7
    found = json.loads(triptych("evaluate", run_dir, "--data", synthetic_manifest, "--json").stdout)
    assert {(d["query"], d["gallery"]) for d in found} == {
        (a, b) for a in ("audio", "image", "text") for b in ("audio", "image", "text") if a != b
    }


def test_localise_reports_chance_level_per_direction(run_dir, synthetic_manifest):
    done = triptych("localise", run_dir, "--data", synthetic_manifest.parent, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {(each["query"], each["gallery"]) for each in found} == {
        ("text", "image"),
        ("text", "audio"),
        ("audio", "image"),
        ("image", "audio"),
    }
    assert all(0 < each["hit_chance_level"] < 1 and each["num_queries"] > 0 for each in found)


def test_evaluate_transductive_and_output_files(run_dir, synthetic_manifest, tmp_path):
    result = triptych("evaluate", run_dir, "--data", synthetic_manifest, "--transductive", "--output", tmp_path / "out")
    assert result.returncode == 0, result.stderr
    assert "transductive" in result.stdout
    assert "±" in result.stdout
    found = json.loads((tmp_path / "out" / "evaluation.json").read_text())["directions"]
    assert [d["mode"] for d in found] == ["inductive"] * 6 + ["transductive"] * 6
    assert (tmp_path / "out" / "evaluation.csv").exists()
    assert (tmp_path / "out" / "queries.parquet").exists()


def test_compare_run_with_itself_is_not_separable(run_dir, synthetic_manifest):
    result = triptych("compare", run_dir, run_dir, "--data", synthetic_manifest)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("not separable") >= 18
    assert "is better" not in result.stdout
    found = json.loads(triptych("compare", run_dir, run_dir, "--data", synthetic_manifest, "--json").stdout)
    assert len(found) == 6
    assert {d["verdict"] for c in found for d in c["differences"].values()} == {"not separable"}


def test_validate_lists_problems_and_exits_2(synthetic_manifest, tmp_path):
    clean = triptych("validate", synthetic_manifest)
    assert clean.returncode == 0
    assert "80 rows, 160 captions" in clean.stdout
    (tmp_path / "pairs.csv").write_text("audio,text,colour\nmissing.wav,a bell,red\n../up.wav,,red\n")
    result = triptych("validate", tmp_path / "pairs.csv")
    assert result.returncode == 2
    for part in ("missing file: 1", "row 2, audio: no such file: missing.wav", "outside path", "colour"):
        assert part in result.stdout
    assert json.loads(triptych("validate", tmp_path / "pairs.csv", "--json").stdout)["errors"] == 2


def test_synthetic_data_and_recipes(tmp_path):
    result = triptych("data", "synthetic", tmp_path / "w", "--scenes", "12", "--captions", "1")
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "w" / "manifest.csv").exists()
    assert "trimodal" in triptych("recipes").stdout
    assert "epochs = 3" in triptych("recipes", "trimodal", "--set", "training.epochs=3").stdout


USAGE_ERRORS = [
    (["fly"], "No such command 'fly'"),
    (["train", "trimodel"], "recipe 'trimodel' is unknown"),
    (["train", "trimodal"], "names no manifest"),
    (["train", "trimodal", "--data", "missing.csv"], "missing.csv: no such file"),
    (["train", "trimodal", "--set", "training.epoch=1"], "key 'epoch' is unknown; known: batch"),
    (["evaluate", "missing", "--data", "missing.csv"], "no such file"),
    (["index", "missing", "--space", "missing"], "no such run folder"),
    (["search", "bell", "--collection", "missing"], "no collection here"),
    (["search"], "Usage"),
    (["search", "--modality", "audio"], "nothing to look for"),
    (["search", "bell", "--weight", "smell=2"], "part 'smell' is unknown"),
    (["search", "bell", "--weight", "text=-2"], "give a number above 0"),
    (["search", "bell", "--where", "split"], "write NAME=VALUE"),
    (["search", "bell", "--modality", "smell"], "modality 'smell' is unknown; known: audio, image, text"),
    (["search", "bell", "-k", "0"], "greater than or equal to 1"),
    (["validate", "missing.csv"], "missing.csv: no such file"),
    (["data", "synthetic", "here", "--scenes", "1"], "scenes is 1; allowed"),
    (["data", "synthetic", "here", "--noise-rate", "1.5"], "noise_rate is 1.5; allowed"),
]


@pytest.mark.parametrize(("arguments", "message"), USAGE_ERRORS, ids=[" ".join(m[0]) for m in USAGE_ERRORS])
def test_usage_errors_print_one_message_and_exit_2(arguments, message, tmp_path):
    result = triptych(*arguments, cwd=tmp_path)
    assert result.returncode == 2
    assert message in result.stdout + result.stderr
    assert "Traceback" not in result.stderr
    assert list(tmp_path.iterdir()) == [], "a mistake leaves nothing behind"


def test_train_reads_every_manifest(synthetic_manifest, tmp_path):
    result = triptych("train", "trimodal", "--data", synthetic_manifest, "--data", "missing.csv", cwd=tmp_path)
    assert (result.returncode, list(tmp_path.iterdir())) == (2, [])
    assert "missing.csv: no such file" in result.stderr


def test_unwritable_output_folder_is_named(tiny_recipe, tmp_path):
    (tmp_path / "file").write_text("in the way")
    (tmp_path / "recipe.toml").write_text(tiny_recipe.to_toml())
    result = triptych("train", tmp_path / "recipe.toml", "-o", tmp_path / "file" / "run")
    assert result.returncode == 2
    assert "file" in result.stderr
    assert "Traceback" not in result.stderr


def interrupt(arguments, ready, tmp_path):
    """Start a command, press Ctrl-C once `ready()` holds, and return its exit code and error output."""
    command = [sys.executable, "-m", "triptych", *map(str, arguments)]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, cwd=tmp_path
    ) as process:
        deadline = time.monotonic() + 60
        while not ready() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        for _ in range(10):
            # Python loses an interrupt that falls into a callback; a person would press again.
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=15)
                break
        process.kill()
        errors = process.communicate()[1]
        return process.returncode, errors


def test_interrupted_synthetic_data_leaves_no_files(tmp_path):
    code, errors = interrupt(["data", "synthetic", "w"], lambda: any(tmp_path.glob(".w.*/images/*")), tmp_path)
    assert code == 130
    assert "interrupted" in errors
    assert "Traceback" not in errors
    assert list(tmp_path.iterdir()) == []


def test_interrupted_training_leaves_complete_files(tiny_recipe, tmp_path):
    (tmp_path / "long.toml").write_text(tiny_recipe.to_toml().replace("epochs = 2", "epochs = 500"))
    run = tmp_path / "run"
    code, errors = interrupt(["train", "long.toml", "-o", run], (run / "last.safetensors").exists, tmp_path)
    assert code == 130
    assert "Traceback" not in errors
    assert not list(run.glob(".*")), "a half-written file is left"
    assert triptych("search", "x", "--collection", run).returncode == 2
    from triptych.checkpoint import load

    load(run / "last.safetensors")


def test_cache_size_and_clear(tmp_path, monkeypatch):
    from tests.data.cached_images import make_encoder, make_images
    from triptych.data.cache import Cache
    from triptych.data.features import compute_or_load

    monkeypatch.setenv("TRIPTYCH_CACHE", str(tmp_path / "kept"))
    compute_or_load(make_encoder(), make_images(tmp_path / "files", 3), Cache.default())
    shown = json.loads(triptych("cache", "--json").stdout)
    assert shown["folder"] == str(tmp_path / "kept")
    assert [shelf["items"] for shelf in shown["stores"]] == [3]
    assert "3 items" in triptych("cache").stdout
    assert json.loads(triptych("cache", "--clear", "--json").stdout)["stores"] == []
