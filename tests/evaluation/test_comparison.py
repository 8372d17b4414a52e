"""Two evaluations side by side: made ones with known differences, and two real runs."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

import triptych
from triptych.contracts import Features, Modality, Source
from triptych.data import manifest
from triptych.errors import UsageError
from triptych.evaluation.comparison import compare, compare_evaluations, plain
from triptych.evaluation.evaluate import Evaluation
from triptych.evaluation.items import Item, Items
from triptych.evaluation.retrieval import Places, measure

CLIPS, CAPTIONS = 60, 5


def items():
    """Captions of 1 to 5 words for each clip; every third clip is a dog."""
    clips = range(CLIPS)
    words = [
        Item(Source("text", "w " * (j + 1)), f"{i}", f"r{i}", "dog" if i % 3 == 0 else "cat")
        for i in clips
        for j in range(CAPTIONS)
    ]
    sounds = [
        Item(Source("audio", f"{i}.wav", 0.0, 1.0 + i % 2), f"{i}", f"r{i}", "dog" if i % 3 == 0 else "cat")
        for i in clips
    ]
    found: dict[Modality, Items] = {}
    each_of: dict[Modality, list[Item]] = {"text": words, "audio": sounds}
    for modality, each in each_of.items():
        features = Features(torch.zeros(len(each), 1), torch.zeros(len(each), 1, 1), torch.ones(len(each), 1).bool())
        found[modality] = Items(modality, each, features, torch.tensor([int(item.group) for item in each]))
    return found


def evaluation(ranks):
    """Captions as queries with these ranks."""
    found = items()
    rank = torch.as_tensor(ranks).reshape(-1, 1)
    direction = measure("text", "audio", Places(rank, torch.ones(len(rank)).long()), found["text"].group, CLIPS, 0)
    return Evaluation([direction], {}, found)


def random_ranks(seed, share=0.5):
    """Clips are easy or hard: their captions share it."""
    rng = np.random.default_rng(seed)
    easy = np.repeat(rng.random(CLIPS) < share, CAPTIONS)
    return np.where(easy, rng.integers(8, 11, len(easy)), rng.integers(11, 14, len(easy)))


def test_a_run_beside_itself_is_not_separable_and_nothing_flips():
    same = evaluation(random_ranks(0))
    (found,) = compare_evaluations([same], [same])
    for name, difference in found.differences.items():
        assert difference.value == 0
        assert difference.verdict() == "not separable", name
        assert difference.interval.half > 0, "60 clips cannot prove that two runs are the same"
    assert found.lost == found.won == []


def test_differences_flips_and_slices_are_those_of_loops():
    before, after = random_ranks(0), random_ranks(1)
    (found,) = compare_evaluations([evaluation(before)], [evaluation(after)])
    hit_a, hit_b = before <= 10, after <= 10
    assert found.differences["R@10"].value == pytest.approx(hit_b.mean() - hit_a.mean())
    assert found.differences["mean rank"].b == pytest.approx(after.mean())
    lost = [i for i in range(len(before)) if hit_a[i] and not hit_b[i]]
    assert len(found.lost) == len(lost)
    assert [flip.b - flip.a for flip in found.lost] == sorted((after[i] - before[i] for i in lost), reverse=True)
    assert len(found.won) == sum(hit_b[i] and not hit_a[i] for i in range(len(before)))
    sliced = {(s.by, s.of): s for s in found.slices}
    texts = items()["text"].each
    dogs = np.array([item.label == "dog" for item in texts])
    assert sliced["label", "dog"].queries == dogs.sum()
    assert sliced["label", "dog"].difference.value == pytest.approx(hit_b[dogs].mean() - hit_a[dogs].mean())
    assert sliced["words", "1–2"].queries == 2 * CLIPS
    assert {of for by, of in sliced if by == "words"} == {"1–2", "3–4", "5–5"}
    assert sliced["seconds", "2–2"].queries == len(texts) / 2


def test_a_clear_difference_is_separable_and_the_better_one_named():
    worse, better = random_ranks(0, 0.3), random_ranks(0, 0.8)
    (found,) = compare_evaluations([evaluation(worse)], [evaluation(better)])
    entry = plain(found)["differences"]
    assert entry["R@10"]["verdict"] == entry["mean rank"]["verdict"] == "B is better"
    (turned,) = compare_evaluations([evaluation(better)], [evaluation(worse)])
    assert plain(turned)["differences"]["mean rank"]["verdict"] == "A is better"
    assert found.differences["R@10"].value == -turned.differences["R@10"].value
    for difference in (*found.differences.values(), *turned.differences.values()):
        assert difference.interval.covers(difference.value)


def test_several_seeds_widen_the_interval_by_what_seeds_do():
    quiet = [evaluation(random_ranks(0)) for _ in range(3)]
    moved = [evaluation(np.where(np.arange(CLIPS * CAPTIONS) % 10 < k, 60, random_ranks(0))) for k in (1, 2, 6)]
    (found,) = compare_evaluations(quiet, moved)
    (alone,) = compare_evaluations(quiet[:1], moved[1:2])
    assert alone.differences["R@10"].separable
    assert not found.differences["R@10"].separable
    assert found.differences["R@10"].interval.half > alone.differences["R@10"].interval.half


def test_what_cannot_be_compared_is_refused():
    one = evaluation(random_ranks(0))
    with pytest.raises(UsageError, match="1 and 2 runs"):
        compare_evaluations([one], [one, one])
    text = one.items["text"]
    other = replace(
        one, items={**one.items, "text": replace(text, each=[*text.each[:-1], replace(text.each[-1], group="x")])}
    )
    with pytest.raises(UsageError, match="measured on other items: 300 and 300 of text"):
        compare_evaluations([one], [other])
    with pytest.raises(UsageError, match="no direction"):
        compare_evaluations([one], [replace(one, directions=[])])


def test_two_real_spaces(run, world, quick):
    from triptych.checkpoint import load
    from triptych.space import Space

    rows = manifest.read(world).split("test").rows
    trained = load(run)
    torch.manual_seed(0)
    fresh = Space(quick)
    for modality in fresh.modalities:
        fresh.encoder(modality).restore(trained.encoder(modality).files())
    found = compare(fresh, trained, rows, show=False)
    assert triptych.compare is compare
    assert len(found) == 6
    for c in found:
        assert {s.by for s in c.slices} <= {"words", "seconds", "label"}
        json.dumps(plain(c))
