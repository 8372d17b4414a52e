"""Retrieval: ranks, recalls, mAP@10, and ranks from a plan over a whole test set."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tests.reference.case import Case, CaseError, differ, pair_of, total, whole
from tests.reference.contrastive import at_scale
from tests.reference.transport import metric_of
from triptych.evaluation.retrieval import MEAN, measure, places
from triptych.similarities.cosine import Cosine
from triptych.space import onto
from triptych.transport import sinkhorn_iterations

EXACT = 1e-12  # rounding of a share
LAST = 10  # mAP@10
UNNAMED_SCALE = 14.0  # of the loss beside one original's recalls; no case names it, their figures give it to 15 digits


class Direction:
    """One direction of one set: each query's rank, by scores of every query against every item."""

    def __init__(self, name: str, scores: Tensor, query_group: Tensor, gallery_group: Tensor) -> None:
        self.name, self.scores = name, scores
        self.query_group, self.gallery_group = query_group, gallery_group
        found = places(lambda rows, columns: scores[rows][:, columns], query_group, gallery_group)
        self.ranks = found.rank[:, 0]
        self.result = measure("", "", found, query_group, scores.shape[1], draws=0)
        self.precision = self.result.metrics[f"mAP@{LAST}"]

    def recall(self, k: int) -> float:
        return (self.ranks <= k).double().mean().item()

    def mean_rank(self) -> float:
        return self.result.metrics[MEAN]

    def median_rank(self) -> float:
        """The originals take the lower whole number where the median falls between two."""
        return float(int(self.result.median_rank))


def both_ways(case: Case, scores: Tensor | None = None) -> dict[str, Direction]:
    """Audio to its captions and captions to their audio; the captions of one audio stand together."""
    audio, captions = case.given("audio"), case.given("captions")
    if len(captions) % len(audio):
        raise CaseError(f"has {len(captions)} captions for {len(audio)} audio files; need the same number for each")
    table = Cosine()(whole(audio), whole(captions)) if scores is None else scores
    owner = torch.arange(len(captions)) // (len(captions) // len(audio))
    return {
        "a2t": Direction("a2t", table, torch.arange(len(audio)), owner),
        "t2a": Direction("t2a", table.T.contiguous(), owner, torch.arange(len(audio))),
    }


def captioned(case: Case) -> None:
    for name, way in both_ways(case).items():
        _percentages(case, way)
        case.value(f"{name}_mAP10", 100 * way.precision)
        case.value(f"{name}_ranks0", way.ranks - 1, 0.0)


def _percentages(case: Case, way: Direction) -> None:
    for k in case.names(f"out__{way.name}_R"):
        if k.isdigit():
            case.value(f"{way.name}_R{k}", 100 * way.recall(int(k)), EXACT)
    case.value(f"{way.name}_medR", way.median_rank(), EXACT)
    case.value(f"{way.name}_meanR", way.mean_rank(), EXACT)


def captioned_unsorted(case: Case) -> None:
    """As fractions, and with an audio-to-text mAP@10 that counts captions in their own order, not in that of ranks."""
    ways = both_ways(case)
    audio, captions = case.given("audio"), case.given("captions")
    case.value("laion_num_samples", float(len(audio)), EXACT)
    for long, way in (("text_to_audio", ways["t2a"]), ("audio_to_text", ways["a2t"])):
        for k in case.names(f"out__laion_{long}_R"):
            case.value(f"laion_{long}_R{k}", way.recall(int(k)))
    case.value("laion_text_to_audio_mean_rank", ways["t2a"].mean_rank())
    case.value("laion_text_to_audio_median_rank", ways["t2a"].median_rank())
    case.value("laion_text_to_audio_mAP10", ways["t2a"].precision)

    theirs, out_of_order = unsorted_precision(ways["a2t"])
    case.value("laion_audio_to_text_mAP10", theirs)
    case.expect(
        "mAP@10 differs from the original's just where captions come out of order",
        differ(ways["a2t"].precision, theirs, 1e-9) == out_of_order,
    )
    case.expect("out of order only ever adds", theirs >= ways["a2t"].precision - 1e-12)

    views = captions.view(len(audio), -1, captions.shape[1]).unbind(dim=1)
    scale = case.number("logit_scale") if case.has("in__logit_scale") else UNNAMED_SCALE
    objective = at_scale(math.log(scale))
    losses = [total(objective(pair_of(whole(audio), whole(view)))) for view in views]
    case.value("laion_cumulative_loss", torch.stack(losses).mean())


def unsorted_precision(way: Direction) -> tuple[float, bool]:
    """The original's mAP@10: right answers in the first ten, numbered as they stand in the gallery."""
    sum_of_all, out_of_order = 0.0, False
    for i, row in enumerate(way.scores):
        place = row.argsort(descending=True).argsort() + 1
        own = place[way.gallery_group == way.query_group[i]]
        found = own[own <= LAST]
        out_of_order |= bool((found.diff() < 0).any())
        sum_of_all += float((torch.arange(1, len(found) + 1) / found.double()).sum()) / len(own)
    return sum_of_all / len(way.scores), out_of_order


def planned(case: Case) -> None:
    """Ranks by a plan over the whole test set, ten iterations each way; and by the cost alone."""
    audio, captions = (onto("sphere", case.given(name)) for name in ("audio", "captions"))
    similarity = metric_of(case.given("M"), "diagonal", normalise=True)
    cost = -similarity(whole(audio), whole(captions)).detach()
    plain = both_ways(case, -cost)
    sides = {"a2t": cost, "t2a": cost.T}
    for name, side in sides.items():
        plan = sinkhorn_iterations(side, case.number("reg"), count=int(case.number("numItermax")))
        way = both_ways(case, plan if name == "a2t" else plan.T)[name]
        case.value(f"{name}_plan", plan)
        case.value(f"{name}_ranks0_float64", way.ranks - 1, 0.0)
        case.value(f"{name}_ranks0_plain_cost", plain[name].ranks - 1, 0.0)
        for k in case.names(f"out__{name}_R"):
            if k.endswith("_plain_cost"):
                number = int(k.removesuffix("_plain_cost"))
                case.value(f"{name}_R{k}", 100 * plain[name].recall(number), EXACT)
        # The original ranked a float32 plan, in which near-ties may fall otherwise: ours, on its plan.
        stored = case.array(f"out__{name}_plan")
        way = both_ways(case, stored if name == "a2t" else stored.T)[name]
        case.value(f"{name}_ranks0", way.ranks - 1, 0.0)
        _percentages(case, way)


def square(case: Case) -> None:
    """Recalls of both directions of a square of scores."""
    scores = case.given("S")
    own = torch.arange(len(scores))
    for letter, side in (("A", scores), ("I", scores.T.contiguous())):
        way = Direction(letter, side, own, own)
        for k in case.names(f"out__{letter}_r"):
            case.value(f"{letter}_r{k}", way.recall(int(k)), EXACT)


FAMILIES = {
    "metrics_5cap": captioned,
    "metrics_5cap_laion": captioned_unsorted,
    "metrics_mltm_ot": planned,
    "davenet_recalls": square,
}
