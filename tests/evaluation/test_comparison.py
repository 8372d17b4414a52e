"""Comparisons of simulated evaluations with known differences, and of two trained spaces."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

import triptych
from tests.training.train_python_data import make_python_rows
from triptych.data import manifest
from triptych.errors import UsageError
from triptych.evaluation.comparison import compare, compare_evaluations
from triptych.evaluation.evaluate import Evaluation
from triptych.evaluation.items import EvalItem, EvalItems
from triptych.evaluation.retrieval import PositiveRanks, compute_retrieval_metrics
from triptych.interfaces import Features, Modality, Source

CLIPS, CAPTIONS = 60, 5


def make_items():
    """Captions of 1 to 5 words for each clip; every third clip has the label dog."""
    clips = range(CLIPS)
    captions = [
        EvalItem(Source("text", "w " * (j + 1)), f"{i}", f"r{i}", "dog" if i % 3 == 0 else "cat")
        for i in clips
        for j in range(CAPTIONS)
    ]
    audio_clips = [
        EvalItem(Source("audio", f"{i}.wav", 0.0, 1.0 + i % 2), f"{i}", f"r{i}", "dog" if i % 3 == 0 else "cat")
        for i in clips
    ]
    by_modality: dict[Modality, EvalItems] = {}
    items_by_modality: dict[Modality, list[EvalItem]] = {"text": captions, "audio": audio_clips}
    for modality, entries in items_by_modality.items():
        features = Features(
            torch.zeros(len(entries), 1), torch.zeros(len(entries), 1, 1), torch.ones(len(entries), 1).bool()
        )
        by_modality[modality] = EvalItems(
            modality, entries, features, torch.tensor([int(item.group) for item in entries])
        )
    return by_modality


def make_evaluation(ranks):
    """An evaluation of captions as queries with these ranks."""
    items = make_items()
    rank = torch.as_tensor(ranks).reshape(-1, 1)
    direction = compute_retrieval_metrics(
        "text", "audio", PositiveRanks(rank, torch.ones(len(rank)).long()), items["text"].group_ids, CLIPS, 0
    )
    return Evaluation([direction], {}, items)


def random_ranks(seed, easy_rate=0.5):
    """Random ranks; the captions of a clip are all easy or all hard."""
    rng = np.random.default_rng(seed)
    easy = np.repeat(rng.random(CLIPS) < easy_rate, CAPTIONS)
    return np.where(easy, rng.integers(8, 11, len(easy)), rng.integers(11, 14, len(easy)))


def test_a_run_compared_with_itself_is_not_significant():
    same = make_evaluation(random_ranks(0))
    (comparison,) = compare_evaluations([same], [same])
    for name, difference in comparison.differences.items():
        assert difference.value == 0
        assert difference.verdict() == "not separable", name
        assert difference.interval.half_width > 0, "60 clips cannot prove that two runs are equal"
    assert comparison.losses == comparison.wins == []


def test_differences_flips_and_slices_match_loops():
    before, after = random_ranks(0), random_ranks(1)
    (comparison,) = compare_evaluations([make_evaluation(before)], [make_evaluation(after)])
    hit_a, hit_b = before <= 10, after <= 10
    assert comparison.differences["R@10"].value == pytest.approx(hit_b.mean() - hit_a.mean())
    assert comparison.differences["mean rank"].mean_b == pytest.approx(after.mean())
    lost = [i for i in range(len(before)) if hit_a[i] and not hit_b[i]]
    assert len(comparison.losses) == len(lost)
    assert [flip.rank_b - flip.rank_a for flip in comparison.losses] == sorted(
        (after[i] - before[i] for i in lost), reverse=True
    )
    assert len(comparison.wins) == sum(hit_b[i] and not hit_a[i] for i in range(len(before)))
    slices = {(s.attribute, s.value): s for s in comparison.slices}
    texts = make_items()["text"].entries
    dogs = np.array([item.label == "dog" for item in texts])
    assert slices["label", "dog"].num_queries == dogs.sum()
    assert slices["label", "dog"].difference.value == pytest.approx(hit_b[dogs].mean() - hit_a[dogs].mean())
    assert slices["words", "1–2"].num_queries == 2 * CLIPS
    assert {value for attribute, value in slices if attribute == "words"} == {"1–2", "3–4", "5–5"}
    assert slices["seconds", "2–2"].num_queries == len(texts) / 2


def test_a_clear_difference_is_significant():
    worse, better = random_ranks(0, 0.3), random_ranks(0, 0.8)
    (comparison,) = compare_evaluations([make_evaluation(worse)], [make_evaluation(better)])
    entry = comparison.to_dict()["differences"]
    assert entry["R@10"]["verdict"] == entry["mean rank"]["verdict"] == "B is better"
    (reverse,) = compare_evaluations([make_evaluation(better)], [make_evaluation(worse)])
    assert reverse.to_dict()["differences"]["mean rank"]["verdict"] == "A is better"
    assert comparison.differences["R@10"].value == -reverse.differences["R@10"].value
    for difference in (*comparison.differences.values(), *reverse.differences.values()):
        assert difference.interval.contains(difference.value)


def test_seed_variance_widens_the_interval():
    stable = [make_evaluation(random_ranks(0)) for _ in range(3)]
    varied = [make_evaluation(np.where(np.arange(CLIPS * CAPTIONS) % 10 < k, 60, random_ranks(0))) for k in (1, 2, 6)]
    (comparison,) = compare_evaluations(stable, varied)
    (single_seed,) = compare_evaluations(stable[:1], varied[1:2])
    assert single_seed.differences["R@10"].is_significant
    assert not comparison.differences["R@10"].is_significant
    assert comparison.differences["R@10"].interval.half_width > single_seed.differences["R@10"].interval.half_width


def test_incomparable_runs_raise():
    evaluation = make_evaluation(random_ranks(0))
    with pytest.raises(UsageError, match="1 and 2 runs"):
        compare_evaluations([evaluation], [evaluation, evaluation])
    text = evaluation.items["text"]
    changed = replace(text, entries=[*text.entries[:-1], replace(text.entries[-1], group="x")])
    other = replace(evaluation, items={**evaluation.items, "text": changed})
    with pytest.raises(UsageError, match="measured on different items: 300 and 300 text items"):
        compare_evaluations([evaluation], [other])
    with pytest.raises(UsageError, match="no retrieval direction"):
        compare_evaluations([evaluation], [replace(evaluation, directions=[])])


def test_compare_two_trained_spaces(run_dir, synthetic_manifest, tiny_recipe):
    from triptych.checkpoint import load
    from triptych.space import Space

    rows = manifest.read(synthetic_manifest).split("test").rows
    trained = load(run_dir)
    torch.manual_seed(0)
    untrained = Space(tiny_recipe)
    for modality in untrained.modalities:
        untrained.encoder(modality).load_extra_files(trained.encoder(modality).extra_files())
    comparisons = compare(untrained, trained, rows, show_progress=False)
    assert triptych.compare is compare
    assert len(comparisons) == 6
    for c in comparisons:
        assert {s.attribute for s in c.slices} <= {"words", "seconds", "label"}
        json.dumps(c.to_dict())


def test_results_as_tables():
    worse, better = random_ranks(0, 0.3), random_ranks(0, 0.8)
    comparisons = compare_evaluations([make_evaluation(worse)], [make_evaluation(better)])
    rows = comparisons.to_arrow().to_pylist()
    assert [row["metric"] for row in rows] == list(comparisons[0].differences)
    for row in rows:
        entry = comparisons.to_dict()["directions"][0]["differences"][row["metric"]]
        assert (row["mean_a"], row["mean_b"], row["verdict"]) == (entry["mean_a"], entry["mean_b"], entry["verdict"])
        assert [row["low"], row["high"]] == entry["interval"]
        assert row["difference"] == row["mean_b"] - row["mean_a"]
    pandas = pytest.importorskip("pandas", reason="needs pandas")
    pandas.testing.assert_frame_equal(comparisons.to_pandas(), comparisons.to_arrow().to_pandas())
    lines = repr(comparisons).splitlines()
    assert len(lines) == 1 + 3
    assert lines[2].startswith("text → audio R@10")
    assert lines[2].endswith("B is better")


def test_python_data_in_compare_gives_the_results_of_the_manifest(run_dir, synthetic_manifest, tmp_path):
    space = triptych.load(run_dir)
    cache = str(tmp_path)
    from_manifest = compare(space, space, synthetic_manifest, show_progress=False, cache=cache, num_resamples=50)
    data = make_python_rows(synthetic_manifest)
    from_memory = compare(space, space, data, show_progress=False, cache=cache, num_resamples=50)
    assert from_memory.to_rows() == from_manifest.to_rows()
