"""Similarities. To add a similarity, write a module here and register its class in SIMILARITIES."""

from triptych.interfaces import Similarity
from triptych.plugins import Registry
from triptych.similarities.cosine import Cosine
from triptych.similarities.dot import Dot
from triptych.similarities.mahalanobis import Mahalanobis
from triptych.similarities.matchmap import Matchmap
from triptych.similarities.word_region import WordRegion

SIMILARITIES: Registry[type[Similarity]] = Registry("similarity", Similarity, required_attributes=("is_exact",))
SIMILARITIES |= {
    "cosine": Cosine,
    "dot": Dot,
    "mahalanobis": Mahalanobis,
    "matchmap": Matchmap,
    "word_region": WordRegion,
}
