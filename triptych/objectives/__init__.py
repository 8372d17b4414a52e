"""Training objectives. To add an objective, write a module here and register its class in OBJECTIVES."""

from triptych.objectives.align_uniform import AlignUniform
from triptych.objectives.contrastive import Contrastive
from triptych.objectives.distill import Distill
from triptych.objectives.infonce import InfoNCE
from triptych.objectives.matching import Matching
from triptych.objectives.objective import Objective
from triptych.objectives.sigmoid import Sigmoid
from triptych.objectives.triplet import Triplet
from triptych.plugins import Registry

OBJECTIVES: Registry[type[Objective]] = Registry("objective", Objective)
OBJECTIVES |= {
    "infonce": InfoNCE,
    "sigmoid": Sigmoid,
    "contrastive": Contrastive,
    "triplet": Triplet,
    "align_uniform": AlignUniform,
    "matching": Matching,
    "distill": Distill,
}
