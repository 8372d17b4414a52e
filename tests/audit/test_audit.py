"""An audit from end to end: it finds what was swapped, by spaces that have not seen it, killed or not."""

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from tests.audit.conftest import SHARE
from tests.data.manifest_files import save
from tests.data.source_copies import WAV, picture, put
from triptych.audit.audit import CLEAN, SCORES, SUSPECTS, audit
from triptych.audit.findings import Judged, suspects
from triptych.audit.folds import part
from triptych.audit.pairs import Content, Kind, contents, kinds, pairs_of
from triptych.audit.share import Share
from triptych.contracts import Modality
from triptych.data import manifest
from triptych.data.cache import Cache
from triptych.errors import ManifestError, UsageError

pytestmark = pytest.mark.slow


def table(path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def judged(found) -> Judged:
    (one,) = found.judged.values()
    return one


def test_what_was_swapped_ranks_first(audited, swapped):
    one = judged(audited)
    truth = [audited.rows[row].id in swapped for row in one.arrays["row"]]
    assert roc_auc_score(truth, -one.arrays["row.fit"]) > 0.9
    assert sorted(one.arrays["row"].tolist()) == list(range(200))  # every row, once


def test_the_share_of_wrong_pairs_is_estimated(audited):
    share = judged(audited).share
    assert abs(share.value - SHARE) < 0.08
    assert share.low <= SHARE <= share.high


def test_no_pair_is_judged_by_a_space_that_learned_from_it(audited):
    judged_by = {}
    for fold in range(2):
        listed = audited.folder / "folds" / f"fold-{fold}.jsonl"
        learned = [json.loads(line) for line in listed.read_text().splitlines()]
        recipe = (listed.with_suffix("") / "recipe.toml").read_text()
        assert f'manifest = "{listed}"' in recipe  # the run learned from this list
        judged_by[fold] = {row.id for row in audited.rows} - {row["id"] for row in learned}
        seen = {(row["image"], text) for row in learned for text in row["text"]}
        for row in audited.rows:
            if row.id in judged_by[fold]:
                assert not {(str(row.image), text) for text in row.texts} & seen
    assert judged_by[0] | judged_by[1] == {row.id for row in audited.rows}
    assert not judged_by[0] & judged_by[1]
    rows = judged(audited).arrays["row"]
    assert {audited.rows[row].id for row in rows[:100]} == judged_by[0]


def test_files_with_the_same_bytes_and_words_are_one_pair(tmp_path):
    for i in range(24):
        put(tmp_path / f"{i}.png", picture(i // 2))
    rows = [{"id": f"r{i}", "image": f"{i}.png", "text": [f"number {i // 2}", f"{i}"]} for i in range(24)]
    read = manifest.read(save(tmp_path / "twice.jsonl", rows)).rows
    held: dict[Modality, Content] = {m: contents(read, m, Cache.default()) for m in ("image", "text")}
    fold = part(pairs_of(held, kinds(held, range(24)), read), 2, 0)
    assert set(fold.values()) == {0, 1}
    assert all(fold[f"r{i}"] == fold[f"r{i + 1}"] for i in range(0, 24, 2))


def test_the_tables_tell_what_was_found(audited, swapped, wrong):
    lines = table(audited.folder / SUSPECTS)
    assert [line["id"] for line in lines] == [audited.rows[one.row].id for one in audited.suspects]
    named = {line["id"] for line in lines if line["verdict"] == "wrong" and not line["caption"]}
    assert len(named & swapped) > 0.5 * len(swapped)
    assert len(named & swapped) > 0.5 * len(named)
    first = lines[0]
    before = {row.id: row for row in audited.rows}
    assert first["now"] == " | ".join(before[first["id"]].texts)
    assert first["better"] == " | ".join(before[first["better_id"]].texts)
    assert float(first["better_score"]) > float(first["score"])
    clean = manifest.read(audited.folder / CLEAN, allow_outside=True)
    assert clean.errors == ()
    assert {row.id for row in clean.rows} == before.keys() - named
    scores = table(audited.folder / SCORES)
    assert len(scores) == 200 + 400  # rows, then their captions
    summary = json.loads((audited.folder / "audit.json").read_text())
    assert summary["wrong"] == sum(line["verdict"] == "wrong" for line in lines)
    assert summary["pairs"]["image-text"]["share"]["value"] == judged(audited).share.value


def written(folder) -> dict[str, bytes]:
    names = (SUSPECTS, SCORES, CLEAN, "audit.json", "review.html")
    return {name: (folder / name).read_bytes() for name in names}


def test_killed_and_started_again_it_finds_the_same(audited, wrong, small):
    other = wrong.parent / "audit-killed"
    command = [sys.executable, "-m", "triptych", "audit", wrong, "-o", other, "--folds", "2", "--recipe", small]
    process = subprocess.Popen(
        [str(part) for part in command],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},  # as here: other threads add in another order
    )
    # Into the second fold: the first is judged, the second has learned for an epoch or more.
    deadline = time.monotonic() + 120
    while not (other / "folds/fold-1/last.safetensors").exists():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (other / SUSPECTS).exists()
    first = (other / "folds/fold-0.safetensors").read_bytes()
    audit(wrong, other, folds=2, recipe=str(small), show=False)
    assert (other / "folds/fold-0.safetensors").read_bytes() == first
    for name, content in written(audited.folder).items():
        assert written(other)[name] == content, name


def test_a_space_that_is_there_can_judge(audited, wrong, tmp_path):
    found = audit(wrong, tmp_path / "audit", space=audited.folder / "folds/fold-0", show=False)
    assert len(judged(found).arrays["row"]) == 200
    assert not (tmp_path / "audit/folds/fold-0.jsonl").exists()


def test_a_space_that_was_trained_on_the_manifest_is_refused(audited, tmp_path):
    learned = audited.folder / "folds" / "fold-0.jsonl"
    with pytest.raises(UsageError, match=r"fold-0\.jsonl: is the very manifest .* leave out --space"):
        audit(learned, tmp_path / "of_its_own", space=learned.with_suffix(""), allow_outside=True, show=False)
    assert not (tmp_path / "of_its_own").exists()


def test_another_audit_in_the_folder_is_not_replaced(audited, wrong, small, tmp_path):
    with pytest.raises(UsageError, match="with other settings; give another folder, or --restart"):
        audit(wrong, audited.folder, folds=3, recipe=str(small), show=False)
    (tmp_path / "mine.txt").write_text("x")
    with pytest.raises(UsageError, match="holds other things"):
        audit(wrong, tmp_path, folds=2, recipe=str(small), show=False)
    (tmp_path / "mine.txt").rename(tmp_path / "settings.json")
    with pytest.raises(UsageError, match="holds other things"):
        audit(wrong, tmp_path, folds=2, recipe=str(small), restart=True, show=False)
    assert (tmp_path / "settings.json").read_text() == "x"
    with pytest.raises(UsageError, match="allowed are 2 to 100"):
        audit(wrong, tmp_path / "a", folds=1, recipe=str(small), show=False)


def test_too_few_rows_are_refused(small, tmp_path):
    for i in range(5):
        put(tmp_path / f"{i}.png", picture(i))
    few = save(tmp_path / "few.jsonl", [{"image": f"{i}.png", "text": f"number {i}"} for i in range(5)])
    with pytest.raises(ManifestError, match="of 5 rows fewer than 12 have the same two modalities"):
        audit(few, tmp_path / "audit", recipe=str(small), show=False)


def test_of_three_modalities_the_one_that_fits_neither_other_is_blamed(tmp_path):
    put(tmp_path / "a.png", picture(1))
    put(tmp_path / "a.wav", WAV)
    rows = [{"id": f"r{i}", "image": "a.png", "audio": "a.wav", "text": f"number {i}"} for i in range(3)]
    read = manifest.read(save(tmp_path / "three.jsonl", rows)).rows
    sure = Share(0.3, 0.2, 0.4, 3)

    def found(doubt: list[float]) -> Judged:
        names = ("score", "p", "kept", "twin_a", "twin_b", "better_score", "other_score")
        arrays = {f"row.{name}": np.zeros(3) for name in names} | {"row": np.arange(3)}
        arrays |= {f"row.{name}": np.array([1, 2, 0]) for name in ("twin", "better", "other")}
        return Judged(arrays, sure, np.array(doubt), None, None)

    judgements: dict[Kind, Judged] = {
        ("image", "audio"): found([0.1, 0.9, 0.8]),
        ("image", "text"): found([0.9, 0.1, 0.9]),
        ("audio", "text"): found([0.8, 0.9, 0.1]),
    }
    blamed = {one.row: (one.modality, one.better) for one in suspects(judgements, read)}
    assert blamed == {0: ("text", 1), 1: ("audio", 2), 2: ("image", 0)}
    film = [replace(row, video=row.image) for row in read]
    assert {one.modality for one in suspects(judgements, film)} <= {"text", "audio"}


def test_the_command_says_what_was_found_and_what_to_do_next(audited, wrong, small):
    done = subprocess.run(
        [sys.executable, "-m", "triptych", "audit", wrong, "-o", audited.folder, "--folds", "2", "--recipe", small],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, "COLUMNS": "200"},
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"image–text: of 200 pairs about \d+\.\d% \(95% interval \d+\.\d–\d+\.\d\) are wrong", done.stdout)
    assert "review.html in a browser" in done.stderr
