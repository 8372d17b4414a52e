"""Distillation of a teacher's class probabilities into the embeddings of both modalities of a pair."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from triptych.errors import InputError, RecipeError
from triptych.interfaces import Pair
from triptych.objectives.objective import Objective
from triptych.objectives.scores import upcast_half

SUM_TOLERANCE = 1e-2  # allowed deviation of a row's sum from 1, for 1,000 float16 probabilities


def class_kl_divergence(teacher: Tensor, logits: Tensor) -> Tensor:
    """Return sum_c g_c (log g_c - log f_c) for each row (N,), with g = teacher (N, C) and f = softmax(logits).

    The sum is KL(g || f) with the natural logarithm. The term of a class with g_c = 0 is 0. The teacher gets no
    gradient.

    Args:
        teacher: class probabilities (N, C). Rows are rescaled to sum to 1.
        logits: the logits of the student, (N, C).

    Returns:
        A tensor (N,).

    Raises:
        InputError: shapes are wrong, or a row of the teacher is not a probability distribution.

    Example:
        >>> import torch
        >>> from triptych.losses import class_kl_divergence
        >>> divergence = class_kl_divergence(torch.tensor([[1.0, 0.0]]), torch.zeros(1, 2))
        >>> print(f"{divergence.mean():.4f}")  # log 2
        0.6931
    """
    if teacher.shape != logits.shape or teacher.dim() != 2:
        raise InputError(f"teacher is {tuple(teacher.shape)}, logits {tuple(logits.shape)}; need the same (N, C)")
    logits = upcast_half(logits)
    teacher = _normalise_teacher(teacher.detach()).to(logits.dtype)
    return (torch.xlogy(teacher, teacher) - teacher * F.log_softmax(logits, dim=1)).sum(dim=1)


def score_cross_entropy(teacher: Tensor, student: Tensor) -> Tensor:
    """Return the cross-entropy of a student's and a teacher's score matrix (N, M), averaged over both directions.

    ½ (H(rows) + H(columns)),  H = mean_i -sum_j softmax(teacher)_ij log softmax(student)_ij

    Args:
        teacher: scores divided by a temperature, (N, M). The teacher gets no gradient.
        student: scores divided by a temperature, (N, M).

    Returns:
        A scalar tensor.

    Raises:
        InputError: shapes are wrong, or a score is NaN or infinite.

    Example:
        >>> import torch
        >>> from triptych.losses import score_cross_entropy
        >>> print(f"{score_cross_entropy(torch.eye(2), torch.zeros(2, 2)):.4f}")  # log 2
        0.6931

    Source: the distillation term of open_clip (Ilharco et al. 2021).
    """
    if teacher.shape != student.shape or teacher.dim() != 2 or 0 in teacher.shape:
        raise InputError(f"teacher is {tuple(teacher.shape)}, student {tuple(student.shape)}; need the same (N, M)")
    teacher, student = upcast_half(teacher.detach()), upcast_half(student)
    for name, logits in (("teacher", teacher), ("student", student)):
        if not torch.isfinite(logits).all():
            raise InputError(f"{name} contains NaN or infinity")
    rows = F.cross_entropy(student, teacher.softmax(dim=1))
    return (rows + F.cross_entropy(student.T, teacher.T.softmax(dim=1))) / 2


class Distill(Objective):
    """KL divergence between the class probabilities of a teacher and of linear class heads on both modalities.

    L = ½ · mean_i KL(g_i || f_a(a_i)) + ½ · mean_i KL(g_i || f_b(b_i)),  f(x) = softmax((W x + bias) / temperature)
    KL(g || f) = sum_c g_c log(g_c / f_c), with the natural logarithm. The class heads are trained with the encoders.
    The class heads are saved in the training state of the run folder, not in the space file.

    Args:
        num_classes: the number of classes of the teacher.
        embed_dim: the dimension of the embeddings.
        temperature: divides the logits of the class heads.
        heads: 1: both modalities share one linear head, which aligns their embeddings. 2: each modality has its own
            head.

    Inputs: embeddings `a` and `b` (N, embed_dim); `teacher_targets` (N, num_classes): class probabilities, not logits.
        No scores and no similarity.
    Returns: a scalar tensor.
    Requirements: pass the parameters of this module, which are the class heads, to the optimizer.
    Also known as: knowledge distillation with soft targets, cross-modal transfer, SoundNet loss. `score_cross_entropy`
        distils the scores of another pair of encoders instead of classes.
    Example:
        >>> import torch
        >>> from triptych.losses import Distill
        >>> loss = Distill(num_classes=3, embed_dim=2)
        >>> teacher_targets = torch.tensor([[0.8, 0.1, 0.1], [0.0, 0.5, 0.5]])
        >>> loss(torch.randn(2, 2), torch.randn(2, 2), teacher_targets=teacher_targets).shape
        torch.Size([])

    Source: Hinton et al. 2015. Aytar et al. 2016, 2017 distil an image classifier into audio and text encoders.
    Use when: a good classifier exists for one modality (images), and pairs of some modalities are rare or do not exist.
    Beware: in a recipe, the objective needs data.teacher, and `embed_dim` must equal space.embed_dim. `temperature`
    applies to the class heads only, not to the teacher's probabilities. The embeddings do not separate classes that the
    teacher confuses. With heads = 2, this objective does not align the two modalities; add another objective.
    """

    reads_scores, reads_teacher = False, True

    def __init__(self, num_classes: int = 1000, embed_dim: int = 128, temperature: float = 1.0, heads: int = 1) -> None:
        super().__init__()
        for name, value, minimum in (("num_classes", num_classes, 2), ("embed_dim", embed_dim, 1)):
            if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
                raise RecipeError(f"distill: {name} = {value}; need an integer of {minimum} or more")
        if heads not in (1, 2):
            raise RecipeError(f"distill: heads = {heads}; need 1 (shared by both modalities) or 2")
        if not 0 < temperature < math.inf:
            raise RecipeError(f"distill: temperature = {temperature}; need a number above 0")
        self.num_classes, self.embed_dim, self.temperature = num_classes, embed_dim, temperature
        self.heads = nn.ModuleList(nn.Linear(embed_dim, num_classes) for _ in range(heads))

    def terms(self, pair: Pair) -> dict[str, Tensor]:
        if pair.teacher_targets is None:
            needs = "in a recipe, set data.teacher or remove distill; in a call, pass teacher_targets"
            raise InputError(f"the batch has no teacher probabilities (N, C), which distill needs; {needs}")
        (rows, embed_dim), dtype = pair.a.embedding.shape, pair.a.embedding.dtype
        if embed_dim != self.embed_dim:
            problem = f"embedding has {embed_dim} dimensions, distill has embed_dim = {self.embed_dim}"
            raise InputError(f"{problem}; set embed_dim of distill to the dimension of the embeddings")
        if (dtype == torch.float64) != (self.heads[0].weight.dtype == torch.float64):
            problem = f"embedding is {dtype}, and the class heads are {self.heads[0].weight.dtype}"
            raise InputError(f"{problem}; convert the embeddings, or the objective with .double()")
        targets, expected = pair.teacher_targets, (rows, self.num_classes)
        if targets.shape != expected:
            raise InputError(
                f"teacher is {tuple(targets.shape)}; need {expected}: one row per item, one column per class"
            )
        logits = {"a": self.heads[0](pair.a.embedding), "b": self.heads[-1](pair.b.embedding)}  # (N, C)
        return {side: class_kl_divergence(targets, x / self.temperature).mean() / 2 for side, x in logits.items()}


def _normalise_teacher(teacher: Tensor) -> Tensor:
    """Check the teacher's probabilities, and rescale each row so that it sums to exactly 1."""
    teacher = upcast_half(teacher)
    sums = teacher.sum(dim=1)
    if not torch.isfinite(teacher).all() or (teacher < 0).any():
        raise InputError("teacher: NaN, infinity or a negative number; need class probabilities, not logits")
    deviation = (sums - 1).abs()
    if (deviation > SUM_TOLERANCE).any():
        row = int(deviation.argmax())
        raise InputError(f"teacher: row {row} sums to {float(sums[row]):.4g}; need class probabilities that sum to 1")
    return teacher / sums[:, None]
