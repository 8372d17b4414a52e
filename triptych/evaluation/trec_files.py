"""Read and write relevance judgements (qrels) and rankings (runs) in the file formats of TREC.

A line of a qrels file is `query iteration document grade`. A line of a run file is `query Q0 document rank score tag`.
White space separates the columns. trec_eval, pytrec_eval, ranx and ir_datasets read the same formats.
"""

from __future__ import annotations

import math
import os
from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from triptych.errors import InputError
from triptych.files import write_text

PathLike = str | os.PathLike[str]
Qrels = Mapping[str, Mapping[str, float]]  # query id -> document id -> grade
Run = Mapping[str, Mapping[str, float]]  # query id -> document id -> score
QRELS_COLUMNS, RUN_COLUMNS = "query iteration document grade", "query Q0 document rank score tag"


def read_qrels(path: PathLike) -> dict[str, dict[str, float]]:
    """Read relevance judgements from a TREC qrels file.

    Args:
        path: A file with the columns query, iteration (ignored), document and grade.

    Returns:
        The grade of each judged document of each query. A grade of 0 means that the document is not relevant.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "qrels.txt"
        >>> _ = path.write_text("q1 0 rain.wav 2\\nq1 0 sea.wav 0\\n")
        >>> read_qrels(path)
        {'q1': {'rain.wav': 2.0, 'sea.wav': 0.0}}
    """
    return _read_table(path, QRELS_COLUMNS)


def read_run(path: PathLike) -> dict[str, dict[str, float]]:
    """Read rankings from a TREC run file.

    As in trec_eval, the column `rank` is ignored, and only the scores define the ranking. `make_run_scores` turns the
    result into a score matrix.

    Args:
        path: A file with the columns query, Q0, document, rank, score and tag.

    Returns:
        The score of each retrieved document of each query.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "run.txt"
        >>> _ = path.write_text("q1 Q0 rain.wav 1 0.75 mine\\nq1 Q0 sea.wav 2 0.5 mine\\n")
        >>> read_run(path)
        {'q1': {'rain.wav': 0.75, 'sea.wav': 0.5}}
    """
    return _read_table(path, RUN_COLUMNS)


def write_qrels(path: PathLike, qrels: Mapping[str, Mapping[str, float] | Iterable[str]]) -> None:
    """Write relevance judgements to a TREC qrels file.

    Args:
        path: The file to write. An existing file is replaced.
        qrels: For each query id, a dict from document id to grade, or the ids of the relevant documents, which get
            grade 1. The format allows only integer grades.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "qrels.txt"
        >>> write_qrels(path, {"q1": {"rain.wav": 2}, "q2": ["sea.wav", "rain.wav"]})
        >>> print(path.read_text(), end="")
        q1 0 rain.wav 2
        q2 0 rain.wav 1
        q2 0 sea.wav 1
    """
    lines = []
    for query, judged in qrels.items():
        grades = to_grades(query, judged)
        for document in sorted(grades):
            if not grades[document].is_integer():
                raise InputError(
                    f"qrels: query {query!r}, document {document!r}: grade {grades[document]}; need an integer"
                )
            lines.append(f"{_check_id(query)} 0 {_check_id(document)} {int(grades[document])}\n")
    write_text(Path(path), "".join(lines))


def write_run(
    path: PathLike,
    scores: ArrayLike,
    query_ids: Sequence[Hashable],
    gallery_ids: Sequence[Hashable],
    depth: int = 1000,
    tag: str = "triptych",
) -> None:
    """Write the best `depth` items of each query to a TREC run file.

    Items with equal scores keep the order of the gallery. trec_eval ignores the order of the file, and
    orders items with equal scores by id.

    Args:
        path: The file to write. An existing file is replaced.
        scores: Score matrix (Q, M): an array, a tensor or a list of lists. Items with a score of -inf are not written.
        query_ids: Ids of the rows (Q,).
        gallery_ids: Ids of the columns (M,).
        depth: Maximum number of items per query.
        tag: Name of the run, written in the last column.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "run.txt"
        >>> write_run(path, [[0.5, 0.75]], query_ids=["q1"], gallery_ids=["sea.wav", "rain.wav"])
        >>> print(path.read_text(), end="")
        q1 Q0 rain.wav 1 0.75 triptych
        q1 Q0 sea.wav 2 0.5 triptych
    """
    matrix = np.asarray(scores, np.float64)
    if matrix.shape != (len(query_ids), len(gallery_ids)):
        raise InputError(
            f"scores have shape {matrix.shape}, but there are {len(query_ids)} query_ids and "
            f"{len(gallery_ids)} gallery_ids"
        )
    if np.isnan(matrix).any():
        raise InputError("scores contain NaN")
    columns = [_check_id(column) for column in gallery_ids]
    lines = []
    for query, row in zip(query_ids, matrix, strict=True):
        order = np.argsort(-row, kind="stable")[:depth]
        for rank, column in enumerate(order[row[order] > -np.inf], start=1):
            lines.append(f"{_check_id(query)} Q0 {columns[column]} {rank} {row[column].item()!r} {_check_id(tag)}\n")
    write_text(Path(path), "".join(lines))


def make_run_scores(run: Run, query_ids: Sequence[Hashable], gallery_ids: Sequence[Hashable]) -> NDArray[np.float64]:
    """Return the score matrix of a run. An item that is not in the run is not retrieved and has the score -inf.

    Args:
        run: The score of each retrieved document of each query, as returned by `read_run`. Queries that are not in
            query_ids are ignored.
        query_ids: Ids of the rows (Q,). If a query is not in the run, all scores in its row are -inf.
        gallery_ids: Ids of the columns (M,): all items that can be retrieved.

    Returns:
        Scores (Q, M).

    Example:
        >>> make_run_scores({"q1": {"b": 0.5, "a": 0.25}}, query_ids=["q1", "q2"], gallery_ids=["a", "b", "c"])
        array([[0.25, 0.5 , -inf],
               [-inf, -inf, -inf]])
    """
    columns = index_ids("gallery_ids", gallery_ids)
    scores = np.full((len(query_ids), len(gallery_ids)), -np.inf)
    for query, row in index_ids("query_ids", query_ids).items():
        for document, score in run.get(query, {}).items():
            if document not in columns:
                raise InputError(f"run: query {query!r}: document {document!r} is not in gallery_ids")
            scores[row, columns[document]] = score
    return scores


def to_grades(query: object, judged: Mapping[str, float] | Iterable[str]) -> dict[str, float]:
    """Return the judgements of one query as a dict from document id to grade. An id without a grade gets grade 1.

    Args:
        query: Id of the query, for error messages.
        judged: A dict from document id to grade, or the ids of the relevant documents.

    Returns:
        The grade of each document. Ids are strings.

    Example:
        >>> to_grades("q1", ["rain.wav"])
        {'rain.wav': 1.0}
    """
    if isinstance(judged, str) or not isinstance(judged, Iterable):
        raise InputError(f"qrels: query {query!r} has {judged!r}; need a set or a dict of document ids")
    pairs = judged.items() if isinstance(judged, Mapping) else ((document, 1) for document in judged)
    try:
        return {str(document): float(grade) for document, grade in pairs}
    except (TypeError, ValueError) as error:
        raise InputError(f"qrels: query {query!r}: need a number for each document, or a set of documents") from error


def index_ids(name: str, ids: Sequence[Hashable] | NDArray) -> dict[str, int]:
    """Return the index of each id. Ids are compared as strings, and must be distinct.

    Args:
        name: Name of the argument, for error messages.
        ids: The ids.

    Returns:
        A dict from id to index, in the order of the ids.

    Example:
        >>> index_ids("query_ids", [7, "b"])
        {'7': 0, 'b': 1}
    """
    values = ids.tolist() if hasattr(ids, "tolist") else ids  # type: ignore[union-attr]
    index: dict[str, int] = {}
    for position, value in enumerate(values):
        if index.setdefault(str(value), position) != position:
            raise InputError(f"{name}: {str(value)!r} occurs twice; ids must be distinct")
    return index


def _read_table(path: PathLike, columns: str) -> dict[str, dict[str, float]]:
    """Read the grade (of qrels) or the score (of a run) of each query and document."""
    names = columns.split()
    value_column = names.index("grade" if "grade" in names else "score")
    table: dict[str, dict[str, float]] = {}
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    for number, line in enumerate(text.split("\n"), start=1):
        fields = line.split()
        if not fields:
            continue
        if len(fields) != len(names):
            raise InputError(f"{path}, line {number}: {len(fields)} columns; need {len(names)}: {columns}")
        try:
            value = float(fields[value_column])
        except ValueError:
            value = math.nan
        if math.isnan(value):
            raise InputError(f"{path}, line {number}: {names[value_column]} {fields[value_column]!r} is not a number")
        documents = table.setdefault(fields[0], {})
        if fields[2] in documents:
            raise InputError(f"{path}, line {number}: query {fields[0]!r} and document {fields[2]!r} occur twice")
        documents[fields[2]] = value
    return table


def _check_id(name: Hashable) -> str:
    """Return an id as text. White space separates the columns of a TREC file, so ids contain no white space."""
    text = str(name)
    if len(text.split()) != 1 or text != text.strip():
        raise InputError(f"id {text!r} is empty or contains white space, which TREC files do not allow")
    return text
