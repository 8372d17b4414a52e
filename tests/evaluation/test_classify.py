"""Classification of a split, by prompts or by a probe: invalid requests, and the command."""

import pytest

from tests.app.cli.run_cli import triptych
from triptych.errors import UsageError
from triptych.evaluation.classify import ClassifyRequest


def test_contradictory_requests_raise():
    ClassifyRequest(method="prompts", prompts=("a {}",), split="all").validate()
    with pytest.raises(UsageError, match="--prompt needs --method prompts"):
        ClassifyRequest(method="embeddings", prompts=("a {}",)).validate()
    for split in ("all", "train"):
        with pytest.raises(UsageError, match="measured on rows that it was not fitted on"):
            ClassifyRequest(method="features", split=split).validate()


@pytest.mark.slow
def test_classify_command_prints_accuracy_and_chance_level(run_dir, synthetic_manifest):
    result = triptych(
        "classify", run_dir, "--data", synthetic_manifest, "--split", "all", "--prompt", "one {}", "--modality", "audio"
    )
    assert result.returncode == 0, result.stderr
    assert "audio:" in result.stdout
    assert "image:" not in result.stdout
    assert "chance" in result.stdout
    wrong = triptych("classify", run_dir, "--data", synthetic_manifest, "--prompt", "no gap")
    assert wrong.returncode == 2
    assert "has no {}" in wrong.stderr


@pytest.mark.slow
def test_classify_command_with_a_probe(run_dir, synthetic_manifest):
    result = triptych(
        "classify",
        run_dir,
        "--data",
        synthetic_manifest,
        "--method",
        "embeddings",
        "--split",
        "valid",
        "--modality",
        "audio",
    )
    assert result.returncode == 0, result.stderr
    assert "by a linear probe" in result.stdout
    same = triptych("classify", run_dir, "--data", synthetic_manifest, "--method", "embeddings", "--split", "all")
    assert same.returncode == 2
    assert "measured on rows that it was not fitted on" in same.stderr
