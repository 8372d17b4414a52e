"""What training minimises. A new objective is one file here and one line in OBJECTIVES."""

from triptych.contracts import Objective
from triptych.objectives.infonce import InfoNCE

OBJECTIVES: dict[str, type[Objective]] = {
    "infonce": InfoNCE,
}
