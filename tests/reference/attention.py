"""Similarities of parts: matchmaps, pooled products, word–region attention."""

from __future__ import annotations

import torch

from tests.reference.case import Case, is_different, make_features_from_parts, make_pair, total_loss
from tests.reference.contrastive import identity_mask, make_infonce
from tests.reference.triplets import compute_matchmap_scores
from triptych.similarities.word_region import WordRegion


def check_matchmap(case: Case) -> None:
    image, audio = case.input_with_grad("I"), case.input_with_grad("A")
    for pooling in case.list_suffixes("out__S_"):
        scores = compute_matchmap_scores(case, image, audio, pooling)
        case.check_value(f"S_{pooling}", scores)
        gradients = torch.autograd.grad((case.input_tensor("weights") * scores).sum(), (image, audio))
        for name, gradient in zip(("I", "A"), gradients, strict=True):
            case.check_gradient(f"{name}_{pooling}", gradient)


def check_pooled(case: Case) -> None:
    image, audio = case.input_with_grad("I"), case.input_with_grad("A")
    scores = compute_matchmap_scores(case, image, audio, "sisa")
    case.check_value("S", scores)
    case.check_gradients((case.input_tensor("weights") * scores).sum(), {"I": image, "A": audio})


def check_words(case: Case) -> None:
    """Word–region attention. The original code omits the power 1 / gamma2 of its equation 10."""
    image, text = case.input_with_grad("img_features"), case.input_with_grad("words_emb")
    gamma1, gamma2, gamma3 = case.input_tensor("gammas")
    labels = case.input_tensor("class_ids") if case.has_array("in__class_ids") else torch.arange(len(image))
    text_mask = torch.arange(text.shape[2]) < case.input_tensor("cap_lens")[:, None]
    a, b = make_features_from_parts(image.flatten(2).mT), make_features_from_parts(text.mT, text_mask)

    as_coded = WordRegion(attention_scale=gamma1.item(), sharpness=gamma2.item())
    pair = make_pair(a, b, labels, as_coded)
    terms = make_infonce(gamma3.log()).terms(pair)
    case.check_value("loss0", 2 * terms["a_to_b"])
    case.check_value("loss1", 2 * terms["b_to_a"])
    case.check_value("total", 2 * total_loss(terms))
    case.check_value(
        "scores", (gamma3 * pair.scores()).masked_fill(pair.positive_mask & ~identity_mask(len(image)), -torch.inf)
    )
    case.check_value("attn_maps", as_coded.attention_maps(a, b).view(*text.shape[::2], *image.shape[2:]))
    case.check_gradients(2 * total_loss(terms), {"img_features": image, "words_emb": text})

    as_written = make_pair(
        a, b, labels, WordRegion(attention_scale=gamma1.item(), sharpness=gamma2.item(), divide_by_sharpness=True)
    )
    scaled_loss = total_loss(make_infonce((gamma2 * gamma3).log()).terms(as_written))
    case.check_close("with the power, at a scale of gamma2 · gamma3", scaled_loss, total_loss(terms), case.tolerance)
    case.check_condition(
        "with the power and the same scale it differs just where gamma2 is not 1",
        is_different(total_loss(make_infonce(gamma3.log()).terms(as_written)), total_loss(terms), 1e-9)
        == (gamma2.item() != 1),
    )


FAMILIES = {
    "davenet_matchmap": check_matchmap,
    "resdavenet_pooldot_similarity": check_pooled,
    "damsm_words": check_words,
}
