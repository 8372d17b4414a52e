"""Convert groups, a matrix of grades, or TREC qrels into the relevance judgements of a score matrix."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from triptych.errors import InputError
from triptych.evaluation.trec_files import PathLike, index_ids, read_qrels, to_grades

GradeFunction = Callable[[slice], Tensor]  # maps a slice of q queries to float64 grades (q, M); 0 means not relevant
QrelsLike = Mapping[Any, Mapping[Any, float] | Iterable[Any]]
RelevanceLike = ArrayLike | Tensor | QrelsLike | PathLike
Labels = Sequence[Hashable] | NDArray | Tensor


@dataclass(frozen=True)
class Judgements:
    """The relevance grades of the gallery items for each query."""

    grades: GradeFunction
    cluster: NDArray[np.int64]  # (Q,) cluster of each query; queries of one cluster are resampled together
    # index of a query -> grades of its relevant items that are not in the gallery
    missing_grades: dict[int, list[float]] = field(default_factory=dict)
    num_ignored_queries: int = 0  # number of queries of the qrels that are not in the score matrix


def to_matrix(name: str, values: ArrayLike | Tensor) -> Tensor:
    """Return a matrix of numbers as a CPU tensor. The types float32 and float64 are kept, other types become float64.

    Args:
        name: Name of the argument, for error messages.
        values: NumPy array, tensor, or list of lists.

    Returns:
        Tensor (Q, M) without NaN.

    Example:
        >>> to_matrix("scores", [[1, 2]])
        tensor([[1., 2.]], dtype=torch.float64)
    """
    if isinstance(values, Tensor):
        tensor = values.detach().cpu()
    else:
        try:
            array = np.asarray(values)
        except ValueError as error:
            raise InputError(f"{name}: the rows have different lengths; need a matrix") from error
        if array.dtype.kind not in "biuf":
            raise InputError(f"{name}: the values have type {array.dtype}; need numbers")
        dtype = np.float32 if array.dtype == np.float32 else np.float64
        # torch does not accept read-only arrays, byte-swapped arrays, or arrays with negative strides.
        tensor = torch.from_numpy(np.require(array, dtype, ["C", "W"]))
    if tensor.dim() != 2 or not tensor.numel():
        raise InputError(f"{name}: the shape is {tuple(tensor.shape)}; need (queries, items), at least (1, 1)")
    tensor = tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.double()
    nan = tensor.isnan()
    if nan.any():
        row, column = nan.nonzero()[0].tolist()
        raise InputError(f"{name}: {int(nan.sum())} values are NaN; the first is in row {row}, column {column}")
    return tensor


def make_judgements(
    shape: tuple[int, int],
    relevance: RelevanceLike | None = None,
    query_groups: Labels | None = None,
    gallery_groups: Labels | None = None,
    query_ids: Labels | None = None,
    gallery_ids: Labels | None = None,
    clusters: Labels | None = None,
) -> Judgements:
    """Return the relevance judgements of a score matrix. `evaluate_scores` explains the arguments.

    Args:
        shape: Number of queries and of gallery items.
        relevance: Matrix of grades, qrels, or the path of a qrels file.
        query_groups: Group of each query.
        gallery_groups: Group of each gallery item.
        query_ids: Id of each query, required with qrels.
        gallery_ids: Id of each gallery item, required with qrels.
        clusters: Cluster of each query, for the bootstrap.

    Returns:
        The judgements.

    Example:
        >>> judgements = make_judgements((1, 3), query_groups=["dog"], gallery_groups=["cat", "dog", "dog"])
        >>> judgements.grades(slice(0, 1))
        tensor([[0., 1., 1.]], dtype=torch.float64)
    """
    if (query_groups is None) != (gallery_groups is None):
        raise InputError("query_groups and gallery_groups belong together: pass both or neither")
    if relevance is not None and query_groups is not None:
        raise InputError("relevance and groups both define the relevant items: pass only one of these arguments")
    if isinstance(relevance, Mapping | str | os.PathLike):
        if query_ids is None or gallery_ids is None:
            raise InputError(
                "qrels need query_ids and gallery_ids: the ids of the rows and of the columns of the scores"
            )
        judgements = _judge_by_qrels(shape, relevance, query_ids, gallery_ids)
    elif query_ids is not None or gallery_ids is not None:
        raise InputError("query_ids and gallery_ids are used with qrels only; pass qrels as relevance")
    elif relevance is not None:
        judgements = Judgements(_check_grades(shape, relevance), np.arange(shape[0]))
    else:
        judgements = _judge_by_groups(shape, query_groups, gallery_groups)
    if clusters is None:
        return judgements
    return replace(judgements, cluster=number_labels(_check_length("clusters", clusters, shape[0]))[0])


def number_labels(*sides: Sequence[Hashable]) -> list[NDArray[np.int64]]:
    """Replace labels by integers. Equal labels get the same integer, also in different lists.

    Args:
        sides: Lists of labels.

    Returns:
        One array of integers per list of labels.

    Example:
        >>> number_labels(["dog", "cat"], ["cat", "cat"])
        [array([0, 1]), array([1, 1])]
    """
    numbers: dict[Hashable, int] = {}
    return [np.array([numbers.setdefault(x, len(numbers)) for x in side], np.int64) for side in sides]


def _check_length(name: str, labels: Labels, length: int) -> list[Hashable]:
    """Return labels as a list of Python objects."""
    if isinstance(labels, str) or not (isinstance(labels, Sequence) or hasattr(labels, "tolist")):
        raise InputError(f"{name}: need a sequence of {length} labels, not {type(labels).__name__}")
    values: list[Any] = labels.tolist() if isinstance(labels, np.ndarray | Tensor) else list(labels)
    if any(isinstance(value, list) for value in values):
        raise InputError(f"{name}: the labels have several dimensions; need a list of {length} labels")
    if len(values) != length:
        raise InputError(f"{name}: {len(values)} labels; the scores need {length} labels")
    return values


def _judge_by_groups(shape: tuple[int, int], query_groups: Labels | None, gallery_groups: Labels | None) -> Judgements:
    if query_groups is None or gallery_groups is None:
        if shape[0] != shape[1]:
            raise InputError(
                f"scores have shape {shape}; without relevance judgements, the matrix must be square, and its diagonal "
                "is relevant. Pass relevance, or query_groups and gallery_groups"
            )
        query = gallery = np.arange(shape[0])  # the diagonal is relevant
    else:
        query, gallery = number_labels(
            _check_length("query_groups", query_groups, shape[0]),
            _check_length("gallery_groups", gallery_groups, shape[1]),
        )
    query_group, gallery_group = torch.from_numpy(query), torch.from_numpy(gallery)
    return Judgements(lambda rows: (query_group[rows, None] == gallery_group).double(), query)


def _check_grades(shape: tuple[int, int], relevance: Any) -> GradeFunction:
    is_bool = isinstance(relevance, Tensor) and relevance.dtype == torch.bool
    grades = relevance.detach().cpu() if is_bool else to_matrix("relevance", relevance)
    if tuple(grades.shape) != shape:
        raise InputError(f"relevance has shape {tuple(grades.shape)}, scores have shape {shape}; need equal shapes")
    invalid = [] if is_bool else (grades.isinf() | (grades < 0)).nonzero().tolist()
    if invalid:
        row, column = invalid[0]
        raise InputError(
            f"relevance: row {row}, column {column}: grade {grades[row, column].item():g}; need a finite number from 0 "
            "(0 means not relevant)"
        )
    return lambda rows: grades[rows].double()


def _judge_by_qrels(
    shape: tuple[int, int], relevance: QrelsLike | PathLike, query_ids: Labels, gallery_ids: Labels
) -> Judgements:
    rows = index_ids("query_ids", _check_length("query_ids", query_ids, shape[0]))
    columns = index_ids("gallery_ids", _check_length("gallery_ids", gallery_ids, shape[1]))
    qrels = relevance if isinstance(relevance, Mapping) else read_qrels(relevance)
    judged_queries = {rows[str(query)]: query for query in qrels if str(query) in rows}
    present: dict[int, dict[int, float]] = {row: {} for row in judged_queries}  # row -> column -> grade
    missing: dict[int, list[float]] = {}
    num_ignored = sum(str(query) not in rows for query in qrels)
    for row, query in judged_queries.items():
        for document, grade in to_grades(query, qrels[query]).items():
            if not 0 <= grade < np.inf:
                raise InputError(
                    f"qrels: query {query!r}, document {document!r}: grade {grade:g}; need a finite number "
                    "from 0 (0 means not relevant)"
                )
            if document in columns:
                present[row][columns[document]] = grade
            elif grade:
                missing.setdefault(row, []).append(grade)
    if not present:
        raise InputError(
            f"no query of the qrels is in query_ids (the qrels have {next(iter(qrels), 'empty')!r} …; "
            f"query_ids has {next(iter(rows))!r} …)"
        )
    if not any(present.values()):
        document = next((document for query in qrels for document in to_grades(query, qrels[query])), "empty")
        raise InputError(
            f"no document of the qrels is in gallery_ids (the qrels have {document!r} …; "
            f"gallery_ids has {next(iter(columns))!r} …)"
        )

    def grades(block: slice) -> Tensor:
        block_rows = range(*block.indices(shape[0]))
        result = torch.zeros(len(block_rows), shape[1], dtype=torch.double)
        for i, row in enumerate(block_rows):
            judged = present.get(row, {})
            result[i, list(judged)] = torch.tensor(list(judged.values()), dtype=torch.double)
        return result

    return Judgements(grades, np.arange(shape[0]), missing, num_ignored)
