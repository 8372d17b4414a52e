"""Suspects: which modality of a row is at fault, and when a row counts as a near-duplicate."""

from dataclasses import fields, replace

import numpy as np
import pytest

from tests.data.dataset_replicas import WAV, png_bytes, write_file
from tests.data.manifest_files import write_manifest
from triptych.auditing.evidence import NoiseRateEstimate
from triptych.auditing.folds import ModalityPair
from triptych.auditing.scoring import CaptionScores, RowScores
from triptych.auditing.suspects import PairScores, find_suspects
from triptych.data import manifest

NOISE_RATE = NoiseRateEstimate(0.3, 0.2, 0.4, 3)


@pytest.fixture
def rows(tmp_path):
    write_file(tmp_path / "a.png", png_bytes(1))
    write_file(tmp_path / "a.wav", WAV)
    rows = [{"id": f"r{i}", "image": "a.png", "audio": "a.wav", "text": f"number {i}"} for i in range(3)]
    return manifest.read(write_manifest(tmp_path / "three.jsonl", rows)).rows


def make_scores(p_wrong: list[float], **arrays: list[float]) -> PairScores:
    values = {field.name: np.zeros(3) for field in fields(RowScores)} | {"row": np.arange(3)}
    values |= {name: np.array([1, 2, 0]) for name in ("near_duplicate", "better_b", "better_a")}
    values |= {name: np.array(array) for name, array in arrays.items()}
    captions = CaptionScores(*(np.zeros(3) for _ in fields(CaptionScores)))
    return PairScores(RowScores(**values), captions, NOISE_RATE, np.array(p_wrong), None, None)


def test_the_modality_that_fits_neither_other_is_at_fault(rows):
    pair_scores: dict[ModalityPair, PairScores] = {
        ("image", "audio"): make_scores([0.1, 0.9, 0.8]),
        ("image", "text"): make_scores([0.9, 0.1, 0.9]),
        ("audio", "text"): make_scores([0.8, 0.9, 0.1]),
    }
    at_fault = {suspect.row: (suspect.modality, suspect.better_row) for suspect in find_suspects(pair_scores, rows)}
    assert at_fault == {0: ("text", 1), 1: ("audio", 2), 2: ("image", 0)}
    video_rows = [replace(row, video=row.image) for row in rows]
    assert {suspect.modality for suspect in find_suspects(pair_scores, video_rows)} <= {"text", "audio"}


def test_near_duplicates_are_listed_last_and_are_not_wrong(rows):
    scores = make_scores([0.9, 0.1, 0.9], duplicate_cosine_b=[0.99, 0.99, 0.0], log_retained_mass=[-2.0, -0.1, -3.0])
    suspects = find_suspects({("image", "text"): scores}, rows)
    assert [(suspect.row, suspect.verdict, suspect.better_row) for suspect in suspects] == [
        (2, "wrong", 0),
        (0, "near-duplicate", 1),
    ]
