"""Questions asked of the method, each a file: fits in a lab, tables, a drawing. A new one is one line in STUDIES."""

from __future__ import annotations

from types import ModuleType

from triptych.studies import batch, metric, negatives, noise, normalisation, objectives, transitivity, views

STUDIES: dict[str, ModuleType] = {  # each has QUESTION, SETUP, count_runs() and run(experiment, cache)
    "objectives": objectives,
    "metric": metric,
    "noise": noise,
    "batch": batch,
    "normalisation": normalisation,
    "negatives": negatives,
    "transitivity": transitivity,
    "views": views,
}
