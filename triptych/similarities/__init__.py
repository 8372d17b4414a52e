"""Scores of items against items, higher = more alike. A new one is one file here and one line in SIMILARITIES."""

from triptych.contracts import Similarity
from triptych.similarities.cosine import Cosine

SIMILARITIES: dict[str, type[Similarity]] = {
    "cosine": Cosine,
}
