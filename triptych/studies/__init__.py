"""Controlled experiments over frozen encoders, one module each. A new study is one name in MODULES."""

from triptych.studies import batch, metric, negatives, noise, normalisation, objectives, transitivity, views
from triptych.studies.page import Study

MODULES = (objectives, metric, noise, batch, normalisation, negatives, transitivity, views)
STUDIES: dict[str, Study] = {module.__name__.rpartition(".")[2]: module.STUDY for module in MODULES}
