"""Retrieval: ranks, recalls, mAP@10, and ranks from a transport plan over a complete test set."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tests.reference.case import Case, CaseError, is_different, make_features, make_pair, total_loss
from tests.reference.contrastive import make_infonce
from tests.reference.transport import make_metric
from triptych.evaluation.retrieval import MEAN_RANK, compute_retrieval_metrics, rank_positives
from triptych.pooling import apply_geometry
from triptych.similarities.cosine import Cosine
from triptych.transport import sinkhorn_plan

ROUNDING = 1e-12  # rounding of a fraction
CUTOFF = 10  # mAP@10
DEFAULT_SCALE = 14.0  # of the loss in one original; derived from its values to 15 digits, because no case states it


class Direction:
    """Check one direction: the rank of each query from the full score matrix."""

    def __init__(self, name: str, scores: Tensor, query_group: Tensor, gallery_group: Tensor) -> None:
        self.name, self.scores = name, scores
        self.query_group, self.gallery_group = query_group, gallery_group
        ranks = rank_positives(lambda rows, columns: scores[rows][:, columns], query_group, gallery_group)
        self.ranks = ranks.rank[:, 0]
        self.result = compute_retrieval_metrics("", "", ranks, query_group, scores.shape[1], num_resamples=0)
        self.precision = self.result.metrics[f"mAP@{CUTOFF}"]

    def recall(self, k: int) -> float:
        return (self.ranks <= k).double().mean().item()

    def mean_rank(self) -> float:
        return self.result.metrics[MEAN_RANK]

    def median_rank(self) -> float:
        """The originals take the lower of the two middle values as median."""
        return float(int(self.result.median_rank))


def make_directions(case: Case, scores: Tensor | None = None) -> dict[str, Direction]:
    """Audio to captions and captions to audio; the captions of one audio file are adjacent."""
    audio, captions = case.input_tensor("audio"), case.input_tensor("captions")
    if len(captions) % len(audio):
        raise CaseError(f"has {len(captions)} captions for {len(audio)} audio files; need the same number for each")
    score_matrix = Cosine()(make_features(audio), make_features(captions)) if scores is None else scores
    owner = torch.arange(len(captions)) // (len(captions) // len(audio))
    return {
        "a2t": Direction("a2t", score_matrix, torch.arange(len(audio)), owner),
        "t2a": Direction("t2a", score_matrix.T.contiguous(), owner, torch.arange(len(audio))),
    }


def check_captioned(case: Case) -> None:
    for name, direction in make_directions(case).items():
        _check_percentages(case, direction)
        case.check_value(f"{name}_mAP10", 100 * direction.precision)
        case.check_value(f"{name}_ranks0", direction.ranks - 1, 0.0)


def _check_percentages(case: Case, direction: Direction) -> None:
    for k in case.list_suffixes(f"out__{direction.name}_R"):
        if k.isdigit():
            case.check_value(f"{direction.name}_R{k}", 100 * direction.recall(int(k)), ROUNDING)
    case.check_value(f"{direction.name}_medR", direction.median_rank(), ROUNDING)
    case.check_value(f"{direction.name}_meanR", direction.mean_rank(), ROUNDING)


def check_captioned_unsorted(case: Case) -> None:
    """As fractions; the audio-to-text mAP@10 of the original counts captions in gallery order instead of rank order."""
    directions = make_directions(case)
    audio, captions = case.input_tensor("audio"), case.input_tensor("captions")
    case.check_value("laion_num_samples", float(len(audio)), ROUNDING)
    for direction_name, direction in (("text_to_audio", directions["t2a"]), ("audio_to_text", directions["a2t"])):
        for k in case.list_suffixes(f"out__laion_{direction_name}_R"):
            case.check_value(f"laion_{direction_name}_R{k}", direction.recall(int(k)))
    case.check_value("laion_text_to_audio_mean_rank", directions["t2a"].mean_rank())
    case.check_value("laion_text_to_audio_median_rank", directions["t2a"].median_rank())
    case.check_value("laion_text_to_audio_mAP10", directions["t2a"].precision)

    original, out_of_order = compute_unsorted_precision(directions["a2t"])
    case.check_value("laion_audio_to_text_mAP10", original)
    case.check_condition(
        "mAP@10 differs from the original's just where captions come out of order",
        is_different(directions["a2t"].precision, original, 1e-9) == out_of_order,
    )
    case.check_condition("out of order only ever adds", original >= directions["a2t"].precision - 1e-12)

    views = captions.view(len(audio), -1, captions.shape[1]).unbind(dim=1)
    scale = case.constant("logit_scale") if case.has_array("in__logit_scale") else DEFAULT_SCALE
    objective = make_infonce(math.log(scale))
    losses = [total_loss(objective.terms(make_pair(make_features(audio), make_features(view)))) for view in views]
    case.check_value("laion_cumulative_loss", torch.stack(losses).mean())


def compute_unsorted_precision(direction: Direction) -> tuple[float, bool]:
    """Return the mAP@10 of the original: positives in the top ten, numbered in gallery order."""
    total, out_of_order = 0.0, False
    for i, row in enumerate(direction.scores):
        ranks = row.argsort(descending=True).argsort() + 1
        positive_ranks = ranks[direction.gallery_group == direction.query_group[i]]
        top_ranks = positive_ranks[positive_ranks <= CUTOFF]
        out_of_order |= bool((top_ranks.diff() < 0).any())
        total += float((torch.arange(1, len(top_ranks) + 1) / top_ranks.double()).sum()) / len(positive_ranks)
    return total / len(direction.scores), out_of_order


def check_planned(case: Case) -> None:
    """Ranks by a transport plan over the complete test set with ten iterations, and by the cost only."""
    audio, captions = (apply_geometry("sphere", case.input_tensor(name)) for name in ("audio", "captions"))
    similarity = make_metric(case.input_tensor("M"), "diagonal", normalise=True)
    cost = -similarity(make_features(audio), make_features(captions)).detach()
    by_cost = make_directions(case, -cost)
    sides = {"a2t": cost, "t2a": cost.T}
    for name, side in sides.items():
        plan = sinkhorn_plan(side, case.constant("reg"), count=int(case.constant("numItermax")))
        direction = make_directions(case, plan if name == "a2t" else plan.T)[name]
        case.check_value(f"{name}_plan", plan)
        case.check_value(f"{name}_ranks0_float64", direction.ranks - 1, 0.0)
        case.check_value(f"{name}_ranks0_plain_cost", by_cost[name].ranks - 1, 0.0)
        for k in case.list_suffixes(f"out__{name}_R"):
            if k.endswith("_plain_cost"):
                cutoff = int(k.removesuffix("_plain_cost"))
                case.check_value(f"{name}_R{k}", 100 * by_cost[name].recall(cutoff), ROUNDING)
        # The original ranked a float32 plan with different near-ties, so triptych's ranking is checked on that plan.
        stored = case.array(f"out__{name}_plan")
        direction = make_directions(case, stored if name == "a2t" else stored.T)[name]
        case.check_value(f"{name}_ranks0", direction.ranks - 1, 0.0)
        _check_percentages(case, direction)


def check_square(case: Case) -> None:
    """Recalls of both directions of a square score matrix."""
    scores = case.input_tensor("S")
    groups = torch.arange(len(scores))
    for letter, side in (("A", scores), ("I", scores.T.contiguous())):
        direction = Direction(letter, side, groups, groups)
        for k in case.list_suffixes(f"out__{letter}_r"):
            case.check_value(f"{letter}_r{k}", direction.recall(int(k)), ROUNDING)


FAMILIES = {
    "metrics_5cap": check_captioned,
    "metrics_5cap_laion": check_captioned_unsorted,
    "metrics_mltm_ot": check_planned,
    "davenet_recalls": check_square,
}
