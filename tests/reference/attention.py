"""Scores from parts: matchmaps, pooled products, words that look at regions."""

from __future__ import annotations

import torch

from tests.reference.case import Case, differ, in_parts, pair_of, total
from tests.reference.contrastive import at_scale, own
from tests.reference.triplets import matchmap_scores
from triptych.similarities.word_region import WordRegion


def matchmap(case: Case) -> None:
    image, audio = case.learned("I"), case.learned("A")
    for kind in case.names("out__S_"):
        scores = matchmap_scores(case, image, audio, kind)
        case.value(f"S_{kind}", scores)
        found = torch.autograd.grad((case.given("weights") * scores).sum(), (image, audio))
        for name, gradient in zip(("I", "A"), found, strict=True):
            case.gradient(f"{name}_{kind}", gradient)


def pooled(case: Case) -> None:
    image, audio = case.learned("I"), case.learned("A")
    scores = matchmap_scores(case, image, audio, "sisa")
    case.value("S", scores)
    case.gradients((case.given("weights") * scores).sum(), {"I": image, "A": audio})


def words(case: Case) -> None:
    """Words that look at regions. The original leaves out the power 1 / gamma2 of its equation 10."""
    image, text = case.learned("img_features"), case.learned("words_emb")
    gamma1, gamma2, gamma3 = case.given("gammas")
    labels = case.given("class_ids") if case.has("in__class_ids") else torch.arange(len(image))
    real = torch.arange(text.shape[2]) < case.given("cap_lens")[:, None]
    a, b = in_parts(image.flatten(2).mT), in_parts(text.mT, real)

    as_coded = WordRegion(attention=gamma1.item(), sharpness=gamma2.item())
    pair = pair_of(a, b, labels, as_coded)
    terms = at_scale(gamma3.log())(pair)
    case.value("loss0", 2 * terms["a_to_b"])
    case.value("loss1", 2 * terms["b_to_a"])
    case.value("total", 2 * total(terms))
    case.value("scores", (gamma3 * pair.scores()).masked_fill(pair.match & ~own(len(image)), -torch.inf))
    case.value("attn_maps", as_coded.attention_maps(a, b).view(*text.shape[::2], *image.shape[2:]))
    case.gradients(2 * total(terms), {"img_features": image, "words_emb": text})

    as_written = pair_of(a, b, labels, WordRegion(attention=gamma1.item(), sharpness=gamma2.item(), power=True))
    hotter = total(at_scale((gamma2 * gamma3).log())(as_written))
    case.agree("with the power, at a scale of gamma2 · gamma3", hotter, total(terms), case.tolerance)
    case.expect(
        "with the power and the same scale it differs just where gamma2 is not 1",
        differ(total(at_scale(gamma3.log())(as_written)), total(terms), 1e-9) == (gamma2.item() != 1),
    )


FAMILIES = {
    "davenet_matchmap": matchmap,
    "resdavenet_pooldot_similarity": pooled,
    "damsm_words": words,
}
