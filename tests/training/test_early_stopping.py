"""The state of early stopping after each evaluation."""

from triptych.training.early_stopping import EarlyStopping


def test_early_stopping_counts_evaluations_since_the_best():
    early_stopping = EarlyStopping()
    assert early_stopping.is_best
    assert not str(early_stopping)
    for score, best, num_bad_evals in [(10.0, 10.0, 0), (9.0, 10.0, 1), (10.0, 10.0, 2), (11.0, 11.0, 0)]:
        early_stopping = early_stopping.update(score)
        assert (early_stopping.best, early_stopping.last, early_stopping.num_bad_evals) == (best, score, num_bad_evals)
    assert not EarlyStopping(1.0, 0.5, 2).should_stop(0)
    assert not EarlyStopping(1.0, 0.5, 2).should_stop(3)
    assert EarlyStopping(1.0, 0.5, 3).should_stop(3)
    assert "best 1.0" in str(EarlyStopping(1.0, 0.5, 3))
