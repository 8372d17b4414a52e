"""audit() from end to end: it finds swapped rows by out-of-fold scores, also when killed and resumed."""

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
from PIL import Image
from sklearn.metrics import roc_auc_score

import triptych
from tests.auditing.conftest import NOISE_RATE
from tests.data.dataset_replicas import png_bytes, write_file
from tests.data.manifest_files import write_manifest
from triptych.auditing.audit import CLEAN_FILE, SCORES_FILE, SUSPECTS_FILE, audit
from triptych.auditing.suspects import PairScores
from triptych.data import manifest
from triptych.errors import ManifestError, UsageError

pytestmark = pytest.mark.slow


def read_csv(path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def only_pair_scores(result) -> PairScores:
    (scores,) = result.pair_scores.values()
    return scores


def test_swapped_rows_rank_first(audit_result, swapped_ids):
    scores = only_pair_scores(audit_result)
    truth = [audit_result.rows[row].id in swapped_ids for row in scores.rows.row]
    assert roc_auc_score(truth, -scores.rows.fit_score) > 0.9
    assert sorted(scores.rows.row.tolist()) == list(range(200))  # every row, once


def test_the_noise_rate_is_estimated(audit_result):
    noise_rate = only_pair_scores(audit_result).noise_rate
    assert abs(noise_rate.value - NOISE_RATE) < 0.08
    assert noise_rate.low <= NOISE_RATE <= noise_rate.high


def test_scores_are_out_of_fold(audit_result):
    held_out_ids = {}
    for fold in range(2):
        fold_manifest = audit_result.folder / "folds" / f"fold-{fold}.jsonl"
        train_rows = [json.loads(line) for line in fold_manifest.read_text().splitlines()]
        recipe = (fold_manifest.with_suffix("") / "recipe.toml").read_text()
        assert f'manifest = "{fold_manifest}"' in recipe  # the run was trained on this manifest
        held_out_ids[fold] = {row.id for row in audit_result.rows} - {row["id"] for row in train_rows}
        train_pairs = {(row["image"], text) for row in train_rows for text in row["text"]}
        for row in audit_result.rows:
            if row.id in held_out_ids[fold]:
                assert not {(str(row.image), text) for text in row.texts} & train_pairs
    assert held_out_ids[0] | held_out_ids[1] == {row.id for row in audit_result.rows}
    assert not held_out_ids[0] & held_out_ids[1]
    rows = only_pair_scores(audit_result).rows.row
    assert {audit_result.rows[row].id for row in rows[:100]} == held_out_ids[0]


def test_csv_files_list_the_suspects(audit_result, swapped_ids, noisy_manifest):
    lines = read_csv(audit_result.folder / SUSPECTS_FILE)
    assert [line["id"] for line in lines] == [audit_result.rows[suspect.row].id for suspect in audit_result.suspects]
    wrong_ids = {line["id"] for line in lines if line["verdict"] == "wrong" and not line["caption"]}
    assert len(wrong_ids & swapped_ids) > 0.5 * len(swapped_ids)
    assert len(wrong_ids & swapped_ids) > 0.5 * len(wrong_ids)
    first = lines[0]
    rows_by_id = {row.id: row for row in audit_result.rows}
    assert first["current"] == " | ".join(rows_by_id[first["id"]].texts)
    assert first["better"] == " | ".join(rows_by_id[first["better_id"]].texts)
    assert float(first["better_score"]) > float(first["score"])
    clean = manifest.read(audit_result.folder / CLEAN_FILE, allow_outside=True)
    assert clean.errors == ()
    assert {row.id for row in clean.rows} == rows_by_id.keys() - wrong_ids
    scores = read_csv(audit_result.folder / SCORES_FILE)
    assert len(scores) == 200 + 400  # rows, then their captions
    summary = json.loads((audit_result.folder / "audit.json").read_text())
    assert summary["wrong"] == sum(line["verdict"] == "wrong" for line in lines)
    assert summary["pairs"]["image-text"]["noise_rate"]["value"] == only_pair_scores(audit_result).noise_rate.value


def read_outputs(folder) -> dict[str, bytes]:
    names = (SUSPECTS_FILE, SCORES_FILE, CLEAN_FILE, "audit.json", "review.html")
    return {name: (folder / name).read_bytes() for name in names}


def test_an_interrupted_audit_resumes_to_the_same_result(audit_result, noisy_manifest, small_recipe):
    other = noisy_manifest.parent / "audit-killed"
    command = [
        sys.executable,
        "-m",
        "triptych",
        "audit",
        noisy_manifest,
        "-o",
        other,
        "--folds",
        "2",
        "--recipe",
        small_recipe,
    ]
    process = subprocess.Popen(
        [str(part) for part in command],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
        },  # as here: other thread counts sum in another order
    )
    # Wait for the second fold: the first is scored, the second has trained for an epoch or more.
    deadline = time.monotonic() + 120
    while not (other / "folds/fold-1/last.safetensors").exists():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (other / SUSPECTS_FILE).exists()
    first = (other / "folds/fold-0.safetensors").read_bytes()
    audit(noisy_manifest, other, num_folds=2, recipe=str(small_recipe), show_progress=False)
    assert (other / "folds/fold-0.safetensors").read_bytes() == first
    for name, content in read_outputs(audit_result.folder).items():
        assert read_outputs(other)[name] == content, name


def test_a_given_space_scores_all_rows(audit_result, noisy_manifest, tmp_path):
    result = audit(noisy_manifest, tmp_path / "audit", space=audit_result.folder / "folds/fold-0", show_progress=False)
    assert len(only_pair_scores(result).rows.row) == 200
    assert not (tmp_path / "audit/folds/fold-0.jsonl").exists()
    space = triptych.load(audit_result.folder / "folds/fold-0")
    from_object = audit(noisy_manifest, tmp_path / "object", space=space, show_progress=False)
    assert from_object.noise_rates == result.noise_rates
    space.name_or_path = None
    with pytest.raises(UsageError, match=r"the space is only in memory; write it with space\.save_pretrained"):
        audit(noisy_manifest, tmp_path / "memory", space=space)
    assert not (tmp_path / "memory").exists()


def test_a_space_trained_on_the_manifest_raises(audit_result, tmp_path):
    train_manifest = audit_result.folder / "folds" / "fold-0.jsonl"
    with pytest.raises(UsageError, match=r"fold-0\.jsonl: the space was trained on this manifest.* leave out --space"):
        audit(
            train_manifest,
            tmp_path / "own_manifest",
            space=train_manifest.with_suffix(""),
            allow_outside=True,
            show_progress=False,
        )
    assert not (tmp_path / "own_manifest").exists()


def test_a_folder_with_another_audit_raises(audit_result, noisy_manifest, small_recipe, tmp_path):
    with pytest.raises(UsageError, match=r"with other settings; give another folder, or .*--restart"):
        audit(noisy_manifest, audit_result.folder, num_folds=3, recipe=str(small_recipe), show_progress=False)
    (tmp_path / "mine.txt").write_text("x")
    with pytest.raises(UsageError, match="files that are not from an audit"):
        audit(noisy_manifest, tmp_path, num_folds=2, recipe=str(small_recipe), show_progress=False)
    (tmp_path / "mine.txt").rename(tmp_path / "settings.json")
    with pytest.raises(UsageError, match="files that are not from an audit"):
        audit(noisy_manifest, tmp_path, num_folds=2, recipe=str(small_recipe), restart=True, show_progress=False)
    assert (tmp_path / "settings.json").read_text() == "x"
    with pytest.raises(UsageError, match="must be 2 to 100"):
        audit(noisy_manifest, tmp_path / "a", num_folds=1, recipe=str(small_recipe), show_progress=False)


def test_an_audit_of_an_earlier_version_raises(noisy_manifest, small_recipe, tmp_path):
    (tmp_path / "settings.json").write_text('{"form": 2, "audit": "0123", "folds": 2, "seed": 0}')
    with pytest.raises(UsageError, match=r"made by an earlier version of triptych; give .*--restart"):
        audit(noisy_manifest, tmp_path, num_folds=2, recipe=str(small_recipe), show_progress=False)


def test_too_few_rows_raise(small_recipe, tmp_path):
    for i in range(5):
        write_file(tmp_path / f"{i}.png", png_bytes(i))
    few = write_manifest(tmp_path / "few.jsonl", [{"image": f"{i}.png", "text": f"number {i}"} for i in range(5)])
    with pytest.raises(ManifestError, match="fewer than 12 of 5 rows have the same two modalities"):
        audit(few, tmp_path / "audit", recipe=str(small_recipe), show_progress=False)


def test_audit_command_prints_the_noise_rate_and_next_step(audit_result, noisy_manifest, small_recipe):
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "triptych",
            "audit",
            noisy_manifest,
            "-o",
            audit_result.folder,
            "--folds",
            "2",
            "--recipe",
            small_recipe,
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, "COLUMNS": "200"},
    )
    assert done.returncode == 0, done.stderr
    rate = r"image–text: estimated noise rate of 200 pairs: \d+\.\d% \(95% interval \d+\.\d–\d+\.\d\)"
    assert re.search(rate, done.stdout)
    assert "review.html in a browser" in done.stderr


def test_python_data_gives_the_scores_of_the_manifest(audit_result, noisy_manifest, small_recipe, tmp_path):
    rows = []
    for row in manifest.read(noisy_manifest).rows:
        with Image.open(row.image or "") as image:
            rows.append({"id": row.id, "image": image.copy(), "text": list(row.texts), "group": row.group})
    arguments = {"num_folds": 2, "recipe": str(small_recipe), "show_progress": False}
    result = triptych.audit((row for row in rows), tmp_path / "audit", **arguments)
    assert result.noise_rates == audit_result.noise_rates
    ids = [(row["id"], row["better_id"], row["p_wrong"]) for row in result.to_rows()]
    assert ids == [(row["id"], row["better_id"], row["p_wrong"]) for row in audit_result.to_rows()]
    before = (tmp_path / "audit" / SUSPECTS_FILE).read_bytes()
    triptych.audit(rows, tmp_path / "audit", **arguments)  # reads the finished folds
    assert (tmp_path / "audit" / SUSPECTS_FILE).read_bytes() == before
    with pytest.raises(UsageError, match="contains other data"):
        triptych.audit(rows[:-1], tmp_path / "audit", **arguments)
    with pytest.raises(UsageError, match="files that are not from an audit"):
        triptych.audit(rows, tmp_path, **arguments)


def test_bad_python_data_raises_and_nothing_is_written(small_recipe, tmp_path):
    few = [{"image": png_bytes(i), "text": f"number {i}"} for i in range(5)]
    for data, message in ((few, "fewer than 12 of 5 rows"), ([], "no rows"), ([{"caption": 1}], "must be text")):
        with pytest.raises(ManifestError, match=message):
            triptych.audit(data, tmp_path / "audit", recipe=str(small_recipe), show_progress=False)
    with pytest.raises(UsageError, match="data is NoneType"):
        triptych.audit(None, tmp_path / "audit", show_progress=False)  # pyright: ignore[reportArgumentType]
    assert list(tmp_path.iterdir()) == []


def test_results_as_tables(audit_result):
    lines = read_csv(audit_result.folder / SUSPECTS_FILE)
    table = audit_result.to_arrow()
    assert table.column("id").to_pylist() == [line["id"] for line in lines]
    assert table.column("p_wrong").to_pylist() == pytest.approx([float(line["p_wrong"]) for line in lines], rel=1e-5)
    assert audit_result.to_pandas()["better"].tolist() == table.column("better").to_pylist()
    document = json.loads(json.dumps(audit_result.to_dict()))
    assert len(document["suspects"]) == len(audit_result.suspects)
    rate = only_pair_scores(audit_result).noise_rate
    assert document["pairs"]["image-text"]["noise_rate"]["low"] == rate.low
    empty = replace(audit_result, suspects=[])
    assert empty.to_arrow().schema == table.schema
    text = repr(audit_result)
    assert f"image–text: estimated noise rate {rate}" in text
    assert lines[0]["id"] in text
    assert "review.html" in text
    assert len(repr(empty).splitlines()) == 3
