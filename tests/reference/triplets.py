"""Margins: hinge and polynomial triplets, sampled, semi-hard, hardest and all."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.reference.case import Case, CaseError, differ, in_parts, pair_of, total, whole
from triptych.objectives.align_uniform import AlignUniform, align, uniform
from triptych.objectives.triplet import Negatives, Shape, Triplet, mine, triplet
from triptych.similarities.matchmap import Matchmap
from triptych.space import onto


def hardest(case: Case) -> None:
    _labelled(case, "hardest", "hinge")


def every(case: Case) -> None:
    _labelled(case, "all", "hinge")


def weighted(case: Case) -> None:
    _labelled(case, "hardest", "polynomial")


def _labelled(case: Case, negatives: Negatives, shape: Shape) -> None:
    audio, text = case.learned("audio_raw"), case.learned("text_raw")
    pair = pair_of(whole(audio), whole(text), case.given("labels"))
    loss = total(Triplet(case.number("margin"), negatives, shape=shape)(pair))
    case.value("loss", loss)
    case.value("cosine", pair.scores())
    case.gradients(loss, {"audio_raw": audio, "text_raw": text})


def ranking(case: Case) -> None:
    v, x = case.learned("v"), case.learned("x")
    pair, delta = pair_of(whole(v), whole(x)), case.number("delta")
    one_way = total(Triplet(delta, "all", "a", "sum")(pair))
    both = total(Triplet(delta, "all", "both", "sum")(pair))
    case.value("loss", one_way)
    case.value("symmetric", both)
    case.value("mean_over_anchors", total(Triplet(delta, "all", "a", "mean")(pair)))
    case.gradients(one_way, {"v": v, "x": x})
    for name, gradient in zip(("v", "x"), torch.autograd.grad(both, (v, x)), strict=True):
        case.gradient(f"{name}_symmetric", gradient)


def sampled_over_matchmaps(case: Case) -> None:
    image, audio = case.learned("I"), case.learned("A")
    scores, margin = matchmap_scores(case, image, audio, case.config["simtype"]), case.number("margin")
    match = torch.eye(len(scores), dtype=torch.bool)
    loss = triplet(scores.T, match, margin, impostors=case.given("impostor_image"))
    loss = loss + triplet(scores, match, margin, impostors=case.given("impostor_audio"))
    case.value("loss", loss)
    case.gradients(loss, {"I": image, "A": audio})


def matchmap_scores(case: Case, image: Tensor, audio: Tensor, kind: str) -> Tensor:
    """Pictures (B, D, H, W) against sounds (B, D, T) of which the first nframes count."""
    if kind.lower() not in ("sisa", "misa", "sima"):
        raise CaseError(f"simtype {kind} is unknown")
    frames = case.given("nframes").clamp(min=1)
    mask = torch.arange(audio.shape[-1]) < frames[:, None]
    a, b = in_parts(image.flatten(2).mT), in_parts(audio.flatten(2).mT, mask)
    return Matchmap(kind=kind.lower())(a, b)  # pyright: ignore[reportArgumentType]


def sampled_and_semi_hard(case: Case) -> None:
    """Sampled is ours. Semi-hard: the original masks with 0, so that its impostor never scores below 0."""
    scores, margin = case.learned("S"), case.number("margin")
    match = torch.eye(len(scores), dtype=torch.bool)
    sides = {"rows": scores, "cols": scores.T}
    theirs, sampled, ours = [], [], []
    zero_never_wins = True
    for name, side in sides.items():
        sampled.append(triplet(side, match, margin, impostors=case.given(f"impostor_{name}")))
        ours.append(triplet(side, match, margin, "semi_hard"))
        positive = side.diagonal()
        impostor = (side * (side < positive[:, None])).amax(dim=1)  # the quirk: masked entries become 0
        theirs.append((impostor - positive + margin).relu().mean())
        case.value(f"sampled_{name}", sampled[-1])
        case.value(f"semihard_clean_{name}", ours[-1])
        case.value(f"semihard_{name}", theirs[-1])
        chosen = mine(side, match, semi_hard=True)
        best = side.gather(1, chosen.clamp(min=0)[:, None]).squeeze(1)
        zero_wins = ((chosen < 0) | (best < 0)) & (margin - positive > 0)
        zero_never_wins &= not bool(zero_wins.any())
        case.expect(
            f"semi-hard {name} differs from the original just where a masked 0 beats every real candidate",
            differ(ours[-1], theirs[-1], 1e-9) == bool(zero_wins.any()),
        )
    one, other = torch.stack(theirs).sum(), torch.stack(sampled).sum()
    case.value("total", one + other)
    case.gradients(one + other, {"S": scores})
    case.gradients(one, {"S_semihard_only": scores})
    if zero_never_wins:
        case.gradients(torch.stack(ours).sum() + other, {"S": scores})


def aligned_and_uniform(case: Case) -> None:
    raw_x, raw_y = case.learned("x"), case.learned("y")
    x, y = onto("sphere", raw_x), onto("sphere", raw_x + raw_y)
    leaves = {"x": raw_x, "y": raw_y}

    def check(name: str, loss: Tensor) -> None:
        case.value(name, loss)
        for key, leaf in leaves.items():
            if case.has(f"grad__{name}_{key}"):
                case.gradients(loss, {f"{name}_{key}": leaf})

    for constant in case.names("out__align_alpha"):
        check(f"align_alpha{constant}", align(x, y, float(constant)))
    for constant in case.names("out__uniform_t"):
        check(f"uniform_t{constant}", uniform(x, float(constant)))
    for constant in case.names("out__uniform_unnormalised_t"):
        check(f"uniform_unnormalised_t{constant}", uniform(raw_x, float(constant)))
    check("stl10_total", total(AlignUniform()(pair_of(whole(x), whole(y)))))


FAMILIES = {
    "mei_triplet_max": hardest,
    "mei_triplet_sum": every,
    "mei_triplet_weighted": weighted,
    "shre_ranking": ranking,
    "davenet_sampled_triplet": sampled_over_matchmaps,
    "resdavenet_triplet": sampled_and_semi_hard,
    "align_uniform": aligned_and_uniform,
}
