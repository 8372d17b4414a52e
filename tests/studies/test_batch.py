"""Memory of a training step by batch size."""

from multiprocessing import get_context

import pytest

from triptych.studies import batch

pytestmark = pytest.mark.slow


def test_step_memory_is_quadratic_in_the_batch_unless_streamed():
    with get_context("spawn").Pool(1) as pool:
        streamed, whole = (
            pool.apply(batch.measure_step_memory, ("infonce", {"stream_block": b}, 4096)) for b in (256, 0)
        )
    assert whole > 4 * 4096 * 4096 / 2**20  # one matrix of scores
    assert streamed < whole / 4
