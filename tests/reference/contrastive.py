"""Picking the partner out of many, and learning from a teacher."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.reference.case import Case, CaseError, differ, pair_of, total, whole
from triptych.contracts import Pair
from triptych.objectives.contrastive import contrastive
from triptych.objectives.distill import class_divergence, score_cross_entropy
from triptych.objectives.infonce import InfoNCE, infonce
from triptych.objectives.sigmoid import Sigmoid, sigmoid_loss
from triptych.objectives.triplet import Triplet
from triptych.similarities.cosine import Cosine
from triptych.space import onto


def at_scale(log_scale: Tensor | float, block: int = 0) -> InfoNCE:
    """The objective with this inverse temperature (its logarithm), whole or streamed."""
    objective = InfoNCE(smallest_temperature=1e-6, block=block).double()
    objective.log_scale.data.fill_(float(log_scale))
    return objective


def own(n: int) -> Tensor:
    """Row i belongs with column i."""
    return torch.eye(n, dtype=torch.bool)


def symmetric(case: Case) -> None:
    """Whole and streamed."""
    audio, text = case.learned("audio_raw"), case.learned("text_raw")
    pair = pair_of(whole(audio), whole(text))
    for block in (0, 4):
        objective = at_scale(case.number("log_scale"), block)
        terms = objective(pair)
        case.value("loss", total(terms))
        case.value("loss_audio_to_text", 2 * terms["a_to_b"])
        case.value("loss_text_to_audio", 2 * terms["b_to_a"])
        case.value("logits_per_audio", pair.scores() * objective.log_scale.exp())
        case.gradients(total(terms), {"audio_raw": audio, "text_raw": text, "log_scale": objective.log_scale})


def symmetric_with_bias(case: Case) -> None:
    """A bias on every logit changes nothing: that is why ours has none."""
    leaves = {name: case.learned(name) for name in ("audio_raw", "text_raw", "log_scale", "logit_bias")}
    pair = pair_of(whole(leaves["audio_raw"]), whole(leaves["text_raw"]))
    logits = pair.scores() * leaves["log_scale"].exp() + leaves["logit_bias"]
    loss = (infonce(logits, own(len(logits))) + infonce(logits.T, own(len(logits)))) / 2
    case.value("loss", loss)
    case.gradients(loss, leaves)
    case.agree("without the bias", total(at_scale(case.number("log_scale"))(pair)), loss, case.tolerance)


def score_teacher(case: Case) -> None:
    a, b = case.learned("student_a_raw"), case.learned("student_t_raw")
    objective, pair = at_scale(case.number("log_scale")), pair_of(whole(a), whole(b))
    loss = total(objective(pair))
    teacher = case.given("teacher_a") @ case.given("teacher_t").T * case.given("teacher_log_scale").exp()
    taught = score_cross_entropy(teacher, pair.scores() * objective.log_scale.exp())
    case.value("contrastive_loss", loss)
    case.value("distill_loss", taught)
    case.value("total", loss + taught)
    case.gradients(loss + taught, {"student_a_raw": a, "student_t_raw": b, "log_scale": objective.log_scale})


def class_teacher(case: Case) -> None:
    image, other = case.learned("student_image_logits"), case.learned("student_other_logits")
    teacher = case.given("teacher_logits").softmax(dim=1)
    sides = class_divergence(teacher, image), class_divergence(teacher, other)
    each = (sides[0] + sides[1]) / 2
    case.value("kl_image", sides[0])
    case.value("kl_other", sides[1])
    case.value("per_pair", each)
    case.value("mean", each.mean())
    case.value("sum", each.sum())
    case.gradients(each.mean(), {"student_image_logits": image, "student_other_logits": other})
    pair = pair_of(whole(case.given("v")), whole(case.given("x")))
    case.value("total", each.mean() + total(Triplet(case.number("delta"), "all", "a", "sum")(pair)))


def crossed(case: Case) -> None:
    """Each side's embedding against the other's after one more projection: two objectives, averaged."""
    leaves, pairs, objectives = _crossed(case)
    loss = torch.stack([total(objective(pair)) for objective, pair in zip(objectives, pairs, strict=True)]).mean()
    case.value("loss", loss)
    case.gradients(loss, leaves)


def crossed_and_weighted(case: Case) -> None:
    """The same, where items in a crowd weigh more."""
    leaves, pairs, objectives = _crossed(case)
    kappa, terms = case.number("kappa"), []
    for objective, pair, name in zip(objectives, pairs, ("audio_raw", "text_raw"), strict=True):
        side = whole(leaves[name].detach())
        weight = (Cosine()(side, side).mean(dim=1) / kappa).exp()
        logits = pair.scores() * objective.log_scale.exp()
        terms += [infonce(each, own(len(logits)), weight=weight) for each in (logits, logits.T)]
    loss = torch.stack(terms).mean()
    case.value("loss", loss)
    case.gradients(loss, leaves)


def _crossed(case: Case) -> tuple[dict[str, Tensor], list[Pair], list[InfoNCE]]:
    leaves = {name: case.learned(name) for name in ("audio_raw", "text_raw", "audio_mlp_raw", "text_mlp_raw")}
    sides = ("audio_raw", "text_mlp_raw"), ("audio_mlp_raw", "text_raw")
    pairs = [pair_of(whole(leaves[a]), whole(leaves[b])) for a, b in sides]
    objectives = [at_scale(case.number(name)) for name in ("log_scale_a", "log_scale_t")]
    leaves |= {"log_scale_a": objectives[0].log_scale, "log_scale_t": objectives[1].log_scale}
    return leaves, pairs, objectives


def pairwise(case: Case) -> None:
    """Each pair judged alone, whole and streamed; and a batch of wrong pairs only."""
    a, b = case.learned("a_raw"), case.learned("t_raw")
    pair = pair_of(whole(a), whole(b))
    for block in (0, 4):
        objective = Sigmoid(smallest_temperature=1e-6, block=block).double()
        objective.log_scale.data.fill_(case.number("log_scale"))
        objective.offset.data.fill_(case.number("bias"))
        loss = total(objective(pair))
        case.value("loss", loss)
        leaves = {"a_raw": a, "t_raw": b, "log_scale": objective.log_scale, "bias": objective.offset}
        case.gradients(loss, leaves)
    logits = pair.scores() * case.given("log_scale").exp() + case.given("bias")
    case.value("loss_negative_only", sigmoid_loss(logits, torch.zeros_like(pair.match)))


def given_negatives(case: Case) -> None:
    """M negatives for each anchor, on the sphere, in the ball or in free space."""
    geometries = {"sphere": "sphere", "ball": "ball", "Rm": "free"}
    if case.config["space"] not in geometries:
        raise CaseError(f"space {case.config['space']} is unknown")
    raw, tau = {name: case.learned(name) for name in ("x_raw", "y_raw", "neg_raw")}, case.number("tau")
    x, y, negatives = (onto(geometries[case.config["space"]], z) for z in raw.values())  # pyright: ignore
    positive = (x * y).sum(dim=1) / tau
    loss = contrastive(positive, torch.einsum("nd,nmd->nm", x, negatives) / tau)
    case.value("loss", loss)
    case.value("loss_y_anchor", contrastive(positive, torch.einsum("nd,nmd->nm", y, negatives) / tau))
    case.gradients(loss, raw)


def hard_negatives(case: Case) -> None:
    x, y = case.learned("x"), case.learned("y")
    step = int(case.number("n_hard_negatives")) + 1
    positive = torch.zeros(len(x), len(y), dtype=torch.bool)
    positive[torch.arange(len(x)), torch.arange(len(x)) * step] = True
    loss = infonce(x @ y.T, positive)
    case.value("loss", loss)
    case.gradients(loss, {"x": x, "y": y})


def masked(case: Case) -> None:
    """Ours leaves out other right answers. The original masks too late: they stay among the wrong ones."""
    audio, text, labels = case.learned("audio_raw"), case.learned("text_raw"), case.given("labels")
    pair = pair_of(whole(audio), whole(text), labels)
    ours = total(at_scale(-torch.tensor(case.number("tau"), dtype=torch.float64).log())(pair))
    logits, truth = pair.scores() / case.number("tau"), torch.arange(len(labels))
    theirs = (F.cross_entropy(logits, truth) + F.cross_entropy(logits.T, truth)) / 2
    case.value("loss_masked", ours)
    case.value("loss", theirs)
    case.gradients(theirs, {"audio_raw": audio, "text_raw": text})
    case.gradients(ours, {"audio_raw_masked": audio, "text_raw_masked": text})
    case.expect(
        "ours differs just where a label comes twice",
        differ(ours, theirs, 1e-9) == (len(labels.unique()) < len(labels)),
    )


def several_right_answers(case: Case) -> None:
    embedding, labels = case.learned("emb"), case.given("labels")
    logits = Cosine()(whole(embedding), whole(embedding)) / case.number("tau")
    others = ~own(len(logits))
    positive = (labels[:, None] == labels) & others
    for name, together in (("ntxent", False), ("supcon", True)):
        loss = infonce(logits, positive, others, together)
        case.value(name, loss)
        case.gradients(loss, {f"emb_{name}": embedding})


def sentences(case: Case) -> None:
    """Cosine over a temperature of 1 / gamma3; captions of one class are not wrong."""
    a, b, gamma = case.learned("cnn_code"), case.learned("rnn_code"), case.given("gamma3")
    labels = case.given("class_ids") if case.has("in__class_ids") else torch.arange(len(a))
    pair = pair_of(whole(a), whole(b), labels)
    terms = at_scale(gamma.log())(pair)
    case.value("loss0", 2 * terms["a_to_b"])
    case.value("loss1", 2 * terms["b_to_a"])
    case.value("total", 2 * total(terms))
    case.value("scores", (gamma * pair.scores()).masked_fill(pair.match & ~own(len(a)), -torch.inf))
    case.gradients(2 * total(terms), {"cnn_code": a, "rnn_code": b})


FAMILIES = {
    "clip_symmetric": symmetric,
    "clip_symmetric_bias": symmetric_with_bias,
    "clip_distill_loss": score_teacher,
    "shre_kd": class_teacher,
    "laion_clap_mlp_loss": crossed,
    "laion_clap_mlp_weighted_loss": crossed_and_weighted,
    "siglip": pairwise,
    "wangisola_contrastive": given_negatives,
    "gradcache_hard_negatives": hard_negatives,
    "mei_ntxent": masked,
    "pml_ntxent_supcon": several_right_answers,
    "damsm_sent": sentences,
}
