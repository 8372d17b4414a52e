"""Contrastive losses and distillation."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.reference.case import Case, CaseError, is_different, make_features, make_pair, total_loss
from triptych.interfaces import Pair
from triptych.objectives.contrastive import contrastive_loss
from triptych.objectives.distill import class_kl_divergence, score_cross_entropy
from triptych.objectives.infonce import InfoNCE, infonce_loss
from triptych.objectives.sigmoid import Sigmoid, sigmoid_loss
from triptych.objectives.triplet import Triplet
from triptych.pooling import apply_geometry
from triptych.similarities.cosine import Cosine


def make_infonce(log_scale: Tensor | float, block: int = 0) -> InfoNCE:
    """Return the objective with this log inverse temperature, dense or streaming."""
    objective = InfoNCE(min_temperature=1e-6, stream_block=block).double()
    objective.log_scale.data.fill_(float(log_scale))
    return objective


def identity_mask(n: int) -> Tensor:
    """Positives are on the diagonal."""
    return torch.eye(n, dtype=torch.bool)


def check_symmetric(case: Case) -> None:
    """Check the dense and the streaming computation."""
    audio, text = case.input_with_grad("audio_raw"), case.input_with_grad("text_raw")
    pair = make_pair(make_features(audio), make_features(text))
    for block in (0, 4):
        objective = make_infonce(case.constant("log_scale"), block)
        terms = objective.terms(pair)
        case.check_value("loss", total_loss(terms))
        case.check_value("loss_audio_to_text", 2 * terms["a_to_b"])
        case.check_value("loss_text_to_audio", 2 * terms["b_to_a"])
        case.check_value("logits_per_audio", pair.scores() * objective.log_scale.exp())
        case.check_gradients(
            total_loss(terms), {"audio_raw": audio, "text_raw": text, "log_scale": objective.log_scale}
        )


def check_symmetric_with_bias(case: Case) -> None:
    """A constant bias on all logits changes nothing, so triptych's objective has none."""
    leaves = {name: case.input_with_grad(name) for name in ("audio_raw", "text_raw", "log_scale", "logit_bias")}
    pair = make_pair(make_features(leaves["audio_raw"]), make_features(leaves["text_raw"]))
    logits = pair.scores() * leaves["log_scale"].exp() + leaves["logit_bias"]
    loss = (infonce_loss(logits, identity_mask(len(logits))) + infonce_loss(logits.T, identity_mask(len(logits)))) / 2
    case.check_value("loss", loss)
    case.check_gradients(loss, leaves)
    case.check_close(
        "without the bias", total_loss(make_infonce(case.constant("log_scale")).terms(pair)), loss, case.tolerance
    )


def check_score_teacher(case: Case) -> None:
    a, b = case.input_with_grad("student_a_raw"), case.input_with_grad("student_t_raw")
    objective, pair = make_infonce(case.constant("log_scale")), make_pair(make_features(a), make_features(b))
    loss = total_loss(objective.terms(pair))
    teacher = (
        case.input_tensor("teacher_a") @ case.input_tensor("teacher_t").T * case.input_tensor("teacher_log_scale").exp()
    )
    distillation_loss = score_cross_entropy(teacher, pair.scores() * objective.log_scale.exp())
    case.check_value("contrastive_loss", loss)
    case.check_value("distill_loss", distillation_loss)
    case.check_value("total", loss + distillation_loss)
    case.check_gradients(
        loss + distillation_loss, {"student_a_raw": a, "student_t_raw": b, "log_scale": objective.log_scale}
    )


def check_class_teacher(case: Case) -> None:
    image, other = case.input_with_grad("student_image_logits"), case.input_with_grad("student_other_logits")
    teacher = case.input_tensor("teacher_logits").softmax(dim=1)
    sides = class_kl_divergence(teacher, image), class_kl_divergence(teacher, other)
    mean_divergence = (sides[0] + sides[1]) / 2
    case.check_value("kl_image", sides[0])
    case.check_value("kl_other", sides[1])
    case.check_value("per_pair", mean_divergence)
    case.check_value("mean", mean_divergence.mean())
    case.check_value("sum", mean_divergence.sum())
    case.check_gradients(mean_divergence.mean(), {"student_image_logits": image, "student_other_logits": other})
    pair = make_pair(make_features(case.input_tensor("v")), make_features(case.input_tensor("x")))
    case.check_value(
        "total", mean_divergence.mean() + total_loss(Triplet(case.constant("delta"), "all", "a", "sum").terms(pair))
    )


def check_crossed(case: Case) -> None:
    """Two objectives, averaged: each side's embedding against the other's after a second projection."""
    leaves, pairs, objectives = _make_crossed(case)
    loss = torch.stack(
        [total_loss(objective.terms(pair)) for objective, pair in zip(objectives, pairs, strict=True)]
    ).mean()
    case.check_value("loss", loss)
    case.check_gradients(loss, leaves)


def check_crossed_and_weighted(case: Case) -> None:
    """The same, with larger weights for items in dense neighbourhoods."""
    leaves, pairs, objectives = _make_crossed(case)
    kappa, terms = case.constant("kappa"), []
    for objective, pair, name in zip(objectives, pairs, ("audio_raw", "text_raw"), strict=True):
        side = make_features(leaves[name].detach())
        weight = (Cosine()(side, side).mean(dim=1) / kappa).exp()
        logits = pair.scores() * objective.log_scale.exp()
        terms += [infonce_loss(each, identity_mask(len(logits)), weight=weight) for each in (logits, logits.T)]
    loss = torch.stack(terms).mean()
    case.check_value("loss", loss)
    case.check_gradients(loss, leaves)


def _make_crossed(case: Case) -> tuple[dict[str, Tensor], list[Pair], list[InfoNCE]]:
    leaves = {name: case.input_with_grad(name) for name in ("audio_raw", "text_raw", "audio_mlp_raw", "text_mlp_raw")}
    sides = ("audio_raw", "text_mlp_raw"), ("audio_mlp_raw", "text_raw")
    pairs = [make_pair(make_features(leaves[a]), make_features(leaves[b])) for a, b in sides]
    objectives = [make_infonce(case.constant(name)) for name in ("log_scale_a", "log_scale_t")]
    leaves |= {"log_scale_a": objectives[0].log_scale, "log_scale_t": objectives[1].log_scale}
    return leaves, pairs, objectives


def check_pairwise(case: Case) -> None:
    """Pairwise sigmoid loss, dense and streaming; also a batch of negatives only."""
    a, b = case.input_with_grad("a_raw"), case.input_with_grad("t_raw")
    pair = make_pair(make_features(a), make_features(b))
    for block in (0, 4):
        objective = Sigmoid(min_temperature=1e-6, stream_block=block).double()
        objective.log_scale.data.fill_(case.constant("log_scale"))
        objective.logit_bias.data.fill_(case.constant("bias"))
        loss = total_loss(objective.terms(pair))
        case.check_value("loss", loss)
        leaves = {"a_raw": a, "t_raw": b, "log_scale": objective.log_scale, "bias": objective.logit_bias}
        case.check_gradients(loss, leaves)
    logits = pair.scores() * case.input_tensor("log_scale").exp() + case.input_tensor("bias")
    case.check_value("loss_negative_only", sigmoid_loss(logits, torch.zeros_like(pair.positive_mask)))


def check_explicit_negatives(case: Case) -> None:
    """M negatives for each anchor, on the sphere, in the ball or in free space."""
    geometries = {"sphere": "sphere", "ball": "ball", "Rm": "free"}
    if case.config["space"] not in geometries:
        raise CaseError(f"space {case.config['space']} is unknown")
    raw, tau = {name: case.input_with_grad(name) for name in ("x_raw", "y_raw", "neg_raw")}, case.constant("tau")
    x, y, negatives = (apply_geometry(geometries[case.config["space"]], z) for z in raw.values())  # pyright: ignore
    positive = (x * y).sum(dim=1) / tau
    loss = contrastive_loss(positive, torch.einsum("nd,nmd->nm", x, negatives) / tau)
    case.check_value("loss", loss)
    case.check_value("loss_y_anchor", contrastive_loss(positive, torch.einsum("nd,nmd->nm", y, negatives) / tau))
    case.check_gradients(loss, raw)


def check_hard_negatives(case: Case) -> None:
    x, y = case.input_with_grad("x"), case.input_with_grad("y")
    step = int(case.constant("n_hard_negatives")) + 1
    positive = torch.zeros(len(x), len(y), dtype=torch.bool)
    positive[torch.arange(len(x)), torch.arange(len(x)) * step] = True
    loss = infonce_loss(x @ y.T, positive)
    case.check_value("loss", loss)
    case.check_gradients(loss, {"x": x, "y": y})


def check_masked(case: Case) -> None:
    """triptych excludes other positives. The original masks too late, so they remain among the negatives."""
    audio, text, labels = (
        case.input_with_grad("audio_raw"),
        case.input_with_grad("text_raw"),
        case.input_tensor("labels"),
    )
    pair = make_pair(make_features(audio), make_features(text), labels)
    ours = total_loss(make_infonce(-torch.tensor(case.constant("tau"), dtype=torch.float64).log()).terms(pair))
    logits, truth = pair.scores() / case.constant("tau"), torch.arange(len(labels))
    original = (F.cross_entropy(logits, truth) + F.cross_entropy(logits.T, truth)) / 2
    case.check_value("loss_masked", ours)
    case.check_value("loss", original)
    case.check_gradients(original, {"audio_raw": audio, "text_raw": text})
    case.check_gradients(ours, {"audio_raw_masked": audio, "text_raw_masked": text})
    case.check_condition(
        "ours differs just where a label comes twice",
        is_different(ours, original, 1e-9) == (len(labels.unique()) < len(labels)),
    )


def check_several_positives(case: Case) -> None:
    embedding, labels = case.input_with_grad("emb"), case.input_tensor("labels")
    logits = Cosine()(make_features(embedding), make_features(embedding)) / case.constant("tau")
    others = ~identity_mask(len(logits))
    positive = (labels[:, None] == labels) & others
    for name, is_supcon in (("ntxent", False), ("supcon", True)):
        loss = infonce_loss(logits, positive, others, is_supcon)
        case.check_value(name, loss)
        case.check_gradients(loss, {f"emb_{name}": embedding})


def check_sentences(case: Case) -> None:
    """Cosine with temperature 1 / gamma3; captions of the same class are not negatives."""
    a, b, gamma = case.input_with_grad("cnn_code"), case.input_with_grad("rnn_code"), case.input_tensor("gamma3")
    labels = case.input_tensor("class_ids") if case.has_array("in__class_ids") else torch.arange(len(a))
    pair = make_pair(make_features(a), make_features(b), labels)
    terms = make_infonce(gamma.log()).terms(pair)
    case.check_value("loss0", 2 * terms["a_to_b"])
    case.check_value("loss1", 2 * terms["b_to_a"])
    case.check_value("total", 2 * total_loss(terms))
    case.check_value(
        "scores", (gamma * pair.scores()).masked_fill(pair.positive_mask & ~identity_mask(len(a)), -torch.inf)
    )
    case.check_gradients(2 * total_loss(terms), {"cnn_code": a, "rnn_code": b})


FAMILIES = {
    "clip_symmetric": check_symmetric,
    "clip_symmetric_bias": check_symmetric_with_bias,
    "clip_distill_loss": check_score_teacher,
    "shre_kd": check_class_teacher,
    "laion_clap_mlp_loss": check_crossed,
    "laion_clap_mlp_weighted_loss": check_crossed_and_weighted,
    "siglip": check_pairwise,
    "wangisola_contrastive": check_explicit_negatives,
    "gradcache_hard_negatives": check_hard_negatives,
    "mei_ntxent": check_masked,
    "pml_ntxent_supcon": check_several_positives,
    "damsm_sent": check_sentences,
}
