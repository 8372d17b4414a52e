"""Controlled experiments over frozen encoders, one module each. A new study is one line in STUDIES."""

from __future__ import annotations

from triptych.studies import batch, metric, negatives, noise, normalisation, objectives, transitivity, views
from triptych.studies.page import Study

STUDIES: dict[str, Study] = {
    "objectives": objectives.STUDY,
    "metric": metric.STUDY,
    "noise": noise.STUDY,
    "batch": batch.STUDY,
    "normalisation": normalisation.STUDY,
    "negatives": negatives.STUDY,
    "transitivity": transitivity.STUDY,
    "views": views.STUDY,
}
