"""The base class of the training objectives. Each objective is also a loss that can be called with plain tensors."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from triptych.errors import InputError
from triptych.interfaces import Features, Pair, Similarity, features_from_embeddings, features_from_parts
from triptych.objectives.scores import upcast_half
from triptych.similarities.cosine import Cosine


class Objective(nn.Module, ABC):
    """A loss over N pairs of items: `terms` returns its named terms, and `forward` returns the sum of the terms."""

    reads_scores: bool = True  # False: the terms depend on the embeddings directly, not on a similarity
    reads_teacher: bool = False  # True: the terms depend on the class probabilities of a teacher

    @abstractmethod
    def terms(self, pair: Pair) -> dict[str, Tensor]:
        """Return the terms of the loss by name. Training logs each term and minimises the sum of the terms."""

    def forward(
        self,
        a: Tensor | None = None,
        b: Tensor | None = None,
        *,
        scores: Tensor | None = None,
        group: Tensor | None = None,
        similarity: Similarity | None = None,
        a_mask: Tensor | None = None,
        b_mask: Tensor | None = None,
        teacher_targets: Tensor | None = None,
    ) -> Tensor:
        """Return the loss of N pairs as a scalar tensor: row i of `a` and row i of `b` belong together.

        Args:
            a: embeddings (N, D), of any length. For a similarity that compares parts: part vectors (N, L, D).
            b: embeddings (N, D), or part vectors (N, P, D).
            scores: a score matrix (N, N), in place of `a` and `b`. The pairs are on the diagonal. A higher score means
                more similar.
            group: integers (N,). Items of the same group are positives of each other, so they are never negatives.
                By default, each row is a group.
            similarity: the function that scores `a` and `b`, from `triptych.similarities`. The default is the cosine.
                Parameters of the similarity belong to your model: pass them to the optimizer.
            a_mask: for part vectors, bool (N, L): False for padding.
            b_mask: for part vectors, bool (N, P): False for padding.
            teacher_targets: class probabilities (N, C), for `Distill`.

        Returns:
            A scalar tensor, float64 for float64 inputs, otherwise float32. Half precision is converted to float32.

        Raises:
            InputError: an input is missing, has a wrong shape or dtype, or contains NaN or infinity; or the objective
                does not read the input.

        Example:
            >>> import torch
            >>> from triptych.losses import Matching
            >>> a, b, group = torch.eye(4), torch.eye(4), torch.tensor([0, 0, 1, 2])
            >>> from_embeddings, from_scores = Matching()(a, b, group=group), Matching()(scores=a @ b.T, group=group)
            >>> torch.equal(from_embeddings, from_scores)
            True
        """
        self._check_inputs_are_read(teacher_targets, scores, similarity)
        if scores is not None:
            others = {"a": a, "b": b, "similarity": similarity, "a_mask": a_mask, "b_mask": b_mask}
            present = [name for name, value in others.items() if value is not None]
            if present:
                raise InputError(f"scores cannot be combined with {', '.join(present)}; pass scores, or a and b")
            pair = _make_pair_from_scores(_check_floats(scores, "scores"), group)
        else:
            similarity = Cosine() if similarity is None else similarity
            if not isinstance(similarity, Similarity):
                raise InputError(f"similarity is {similarity!r}; need an instance, such as triptych.losses.Dot()")
            a, b = _check_floats(a, "a"), _check_floats(b, "b")
            _check_same_format(a, b)
            a_features = _make_features(a, a_mask, "a", similarity)
            b_features = _make_features(b, b_mask, "b", similarity)
            pair = Pair(a_features, b_features, _make_group(group, a), similarity, teacher_targets)
        return torch.stack(list(self.terms(pair).values())).sum()

    def metrics_to_log(self) -> dict[str, float]:
        """Return further values to log with the loss terms, such as a learned temperature."""
        return {}

    def after_step(self) -> None:
        """Project the parameters onto their constraints. Call this method after each optimizer step."""

    def _check_inputs_are_read(
        self, teacher_targets: Tensor | None, scores: Tensor | None, similarity: Similarity | None
    ) -> None:
        name = type(self).__name__
        if teacher_targets is not None and not self.reads_teacher:
            raise InputError(f"{name} does not read teacher_targets; call it without teacher_targets")
        for input_name, value in (("scores", scores), ("similarity", similarity)):
            if value is not None and not self.reads_scores:
                raise InputError(f"{name} reads embeddings, not scores; call it with a and b, without {input_name}")


class PrecomputedScores(Similarity):
    """A score matrix that the caller of an objective has computed. The features are ignored."""

    is_exact = False

    def __init__(self, scores: Tensor) -> None:
        super().__init__()
        self.scores = scores  # (N, M)

    def forward(self, a: Features, b: Features) -> Tensor:  # noqa: ARG002
        return self.scores

    def query(self, a: Features) -> Tensor:  # noqa: ARG002
        raise InputError("a score matrix has no query vectors; pass the embeddings a and b instead of scores")

    def keys(self, b: Features) -> Tensor:
        return self.query(b)


def _make_pair_from_scores(scores: Tensor, group: Tensor | None) -> Pair:
    if scores.dim() != 2 or scores.shape[0] != scores.shape[1]:
        raise InputError(f"scores is {tuple(scores.shape)}; need a square matrix (N, N) with pairs on the diagonal")
    if not torch.isfinite(scores).all():
        raise InputError("scores contains NaN or infinity")
    placeholder = features_from_embeddings(scores.new_zeros(len(scores), 1))
    return Pair(placeholder, placeholder, _make_group(group, scores), PrecomputedScores(scores))


def _make_group(group: Tensor | None, rows: Tensor) -> Tensor:
    if group is None:
        return torch.arange(len(rows), device=rows.device)
    if not isinstance(group, Tensor):
        raise InputError(f"group is {type(group).__name__}; need a tensor of integers ({len(rows)},)")
    return group


def _make_features(x: Tensor, mask: Tensor | None, name: str, similarity: Similarity) -> Features:
    """Return the features of one side: part vectors with their mask, or embeddings."""
    reader, shape = type(similarity).__name__, tuple(x.shape)
    if not similarity.reads_parts:
        if x.dim() != 2:
            raise InputError(f"{name} is {shape}; need embeddings (N, D), or a similarity that compares parts")
        if mask is not None:
            raise InputError(f"{name}_mask is set, but {reader} compares embeddings (N, D), which have no padding")
        return features_from_embeddings(x)
    if x.dim() != 3 or x.shape[1] == 0:
        raise InputError(f"{name} is {shape}, but {reader} compares parts; need (N, L, D), with L at least 1")
    if mask is None:
        raise InputError(f"{name} has parts, but no mask; set {name}_mask, bool {shape[:2]}, False for padding")
    if mask.shape != shape[:2] or mask.dtype != torch.bool:
        raise InputError(f"{name}_mask is {tuple(mask.shape)} {mask.dtype}; need bool {shape[:2]}")
    return features_from_parts(x, mask)


def _check_floats(x: Tensor | None, name: str) -> Tensor:
    """Return the tensor, in at least float32; raise InputError if it is missing or not a floating-point tensor."""
    if x is None:
        raise InputError(f"{name} is missing; pass embeddings a and b, or scores = a matrix (N, N)")
    if not isinstance(x, Tensor) or not x.is_floating_point():
        actual = x.dtype if isinstance(x, Tensor) else type(x).__name__
        raise InputError(f"{name} is {actual}; need a floating-point tensor")
    return upcast_half(x)


def _check_same_format(a: Tensor, b: Tensor) -> None:
    """Raise InputError unless both sides have the same numbers of rows and dimensions, and the same dtype."""
    if a.dim() != b.dim() or a.shape[:1] != b.shape[:1] or a.shape[-1:] != b.shape[-1:]:
        needs = "the same (N, D), or parts (N, L, D) and (N, P, D)"
        raise InputError(f"a is {tuple(a.shape)} and b is {tuple(b.shape)}; need {needs}")
    if a.dtype != b.dtype:
        raise InputError(f"a is {a.dtype} and b is {b.dtype}; need the same dtype")
