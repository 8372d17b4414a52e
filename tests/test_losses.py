"""The public namespace of the losses."""

import triptych
from triptych import losses
from triptych.objectives import OBJECTIVES
from triptych.similarities import SIMILARITIES


def test_the_namespace_has_every_objective_and_similarity():
    for mechanism in (*OBJECTIVES.values(), *SIMILARITIES.values()):
        assert getattr(losses, mechanism.__name__) is mechanism
        assert mechanism.__name__ in losses.__all__
    assert triptych.losses is losses
