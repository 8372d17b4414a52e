"""Errors of the Hugging Face hub say what to do. tests/test_checkpoint_pretrained.py tests uploads and downloads."""

import pytest
from huggingface_hub import errors

from triptych import hub
from triptych.errors import CheckpointError


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (errors.LocalEntryNotFoundError("x"), "cannot be reached"),
        (ConnectionError("x"), "cannot be reached"),
        (errors.HFValidationError("x"), "not a valid model name"),
        (ImportError("x"), "needs huggingface_hub"),
        (ValueError("first line\nsecond"), "cannot be downloaded from the Hugging Face hub: first line"),
    ],
)
def test_a_failed_download_says_what_to_do(error, message, monkeypatch):
    def fail(*_args, **_options):
        raise error

    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
    with pytest.raises(CheckpointError, match=f"^hf:me/space: .*{message}"):
        hub.download("me/space")
