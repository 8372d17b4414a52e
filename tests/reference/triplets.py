"""Triplet losses: hinge and polynomial, with sampled, semi-hard, hardest and all negatives."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.reference.case import (
    Case,
    CaseError,
    is_different,
    make_features,
    make_features_from_parts,
    make_pair,
    total_loss,
)
from triptych.objectives.align_uniform import AlignUniform, align_loss, uniform_loss
from triptych.objectives.triplet import LossName, NegativeMining, Triplet, mine_negatives, triplet_loss
from triptych.pooling import apply_geometry
from triptych.similarities.matchmap import Matchmap


def check_hardest(case: Case) -> None:
    _check_labelled(case, "hardest", "hinge")


def check_all(case: Case) -> None:
    _check_labelled(case, "all", "hinge")


def check_weighted(case: Case) -> None:
    _check_labelled(case, "hardest", "polynomial")


def _check_labelled(case: Case, negatives: NegativeMining, shape: LossName) -> None:
    audio, text = case.input_with_grad("audio_raw"), case.input_with_grad("text_raw")
    pair = make_pair(make_features(audio), make_features(text), case.input_tensor("labels"))
    loss = total_loss(Triplet(case.constant("margin"), negatives, loss=shape).terms(pair))
    case.check_value("loss", loss)
    case.check_value("cosine", pair.scores())
    case.check_gradients(loss, {"audio_raw": audio, "text_raw": text})


def check_ranking(case: Case) -> None:
    v, x = case.input_with_grad("v"), case.input_with_grad("x")
    pair, delta = make_pair(make_features(v), make_features(x)), case.constant("delta")
    one_way = total_loss(Triplet(delta, "all", "a", "sum").terms(pair))
    both = total_loss(Triplet(delta, "all", "both", "sum").terms(pair))
    case.check_value("loss", one_way)
    case.check_value("symmetric", both)
    case.check_value("mean_over_anchors", total_loss(Triplet(delta, "all", "a", "mean").terms(pair)))
    case.check_gradients(one_way, {"v": v, "x": x})
    for name, gradient in zip(("v", "x"), torch.autograd.grad(both, (v, x)), strict=True):
        case.check_gradient(f"{name}_symmetric", gradient)


def check_sampled_over_matchmaps(case: Case) -> None:
    image, audio = case.input_with_grad("I"), case.input_with_grad("A")
    scores, margin = compute_matchmap_scores(case, image, audio, case.config["simtype"]), case.constant("margin")
    positive_mask = torch.eye(len(scores), dtype=torch.bool)
    loss = triplet_loss(scores.T, positive_mask, margin, negative_index=case.input_tensor("impostor_image"))
    loss = loss + triplet_loss(scores, positive_mask, margin, negative_index=case.input_tensor("impostor_audio"))
    case.check_value("loss", loss)
    case.check_gradients(loss, {"I": image, "A": audio})


def compute_matchmap_scores(case: Case, image: Tensor, audio: Tensor, pooling: str) -> Tensor:
    """Score images (B, D, H, W) against audio (B, D, T) with nframes valid frames."""
    if pooling.lower() not in ("sisa", "misa", "sima"):
        raise CaseError(f"simtype {pooling} is unknown")
    frames = case.input_tensor("nframes").clamp(min=1)
    mask = torch.arange(audio.shape[-1]) < frames[:, None]
    a, b = make_features_from_parts(image.flatten(2).mT), make_features_from_parts(audio.flatten(2).mT, mask)
    return Matchmap(reduction=pooling.lower())(a, b)  # pyright: ignore[reportArgumentType]


def check_sampled_and_semi_hard(case: Case) -> None:
    """Sampled negatives agree. Semi-hard: the original masks with 0, so its negative never scores below 0."""
    scores, margin = case.input_with_grad("S"), case.constant("margin")
    positive_mask = torch.eye(len(scores), dtype=torch.bool)
    sides = {"rows": scores, "cols": scores.T}
    original, sampled, ours = [], [], []
    zero_never_wins = True
    for name, side in sides.items():
        sampled.append(triplet_loss(side, positive_mask, margin, negative_index=case.input_tensor(f"impostor_{name}")))
        ours.append(triplet_loss(side, positive_mask, margin, "semi_hard"))
        positive = side.diagonal()
        impostor = (side * (side < positive[:, None])).amax(dim=1)  # masked entries become 0, as in the original
        original.append((impostor - positive + margin).relu().mean())
        case.check_value(f"sampled_{name}", sampled[-1])
        case.check_value(f"semihard_clean_{name}", ours[-1])
        case.check_value(f"semihard_{name}", original[-1])
        chosen = mine_negatives(side, positive_mask, semi_hard=True)
        best = side.gather(1, chosen.clamp(min=0)[:, None]).squeeze(1)
        zero_wins = ((chosen < 0) | (best < 0)) & (margin - positive > 0)
        zero_never_wins &= not bool(zero_wins.any())
        case.check_condition(
            f"semi-hard {name} differs from the original just where a masked 0 beats every real candidate",
            is_different(ours[-1], original[-1], 1e-9) == bool(zero_wins.any()),
        )
    original_total, sampled_total = torch.stack(original).sum(), torch.stack(sampled).sum()
    case.check_value("total", original_total + sampled_total)
    case.check_gradients(original_total + sampled_total, {"S": scores})
    case.check_gradients(original_total, {"S_semihard_only": scores})
    if zero_never_wins:
        case.check_gradients(torch.stack(ours).sum() + sampled_total, {"S": scores})


def check_align_uniform(case: Case) -> None:
    raw_x, raw_y = case.input_with_grad("x"), case.input_with_grad("y")
    x, y = apply_geometry("sphere", raw_x), apply_geometry("sphere", raw_x + raw_y)
    leaves = {"x": raw_x, "y": raw_y}

    def check_loss(name: str, loss: Tensor) -> None:
        case.check_value(name, loss)
        for key, leaf in leaves.items():
            if case.has_array(f"grad__{name}_{key}"):
                case.check_gradients(loss, {f"{name}_{key}": leaf})

    for constant in case.list_suffixes("out__align_alpha"):
        check_loss(f"align_alpha{constant}", align_loss(x, y, float(constant)))
    for constant in case.list_suffixes("out__uniform_t"):
        check_loss(f"uniform_t{constant}", uniform_loss(x, float(constant)))
    for constant in case.list_suffixes("out__uniform_unnormalised_t"):
        check_loss(f"uniform_unnormalised_t{constant}", uniform_loss(raw_x, float(constant)))
    check_loss("stl10_total", total_loss(AlignUniform().terms(make_pair(make_features(x), make_features(y)))))


FAMILIES = {
    "mei_triplet_max": check_hardest,
    "mei_triplet_sum": check_all,
    "mei_triplet_weighted": check_weighted,
    "shre_ranking": check_ranking,
    "davenet_sampled_triplet": check_sampled_over_matchmaps,
    "resdavenet_triplet": check_sampled_and_semi_hard,
    "align_uniform": check_align_uniform,
}
