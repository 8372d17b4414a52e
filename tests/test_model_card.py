"""The model card of a saved space."""

import pytest
from huggingface_hub import ModelCard

import triptych

pytestmark = pytest.mark.slow


def test_the_model_card_lists_training_data_scores_and_usage(run_dir, tmp_path):
    space = triptych.load(run_dir)
    space.history["valid"] = 12.345
    space.save_pretrained(tmp_path)
    card = ModelCard.load(tmp_path / "README.md")
    metadata = card.data.to_dict()
    assert metadata["library_name"] == "triptych"
    (result,) = getattr(card.data, "eval_results")  # noqa: B009 - the library declares another class
    assert result.metric_value == pytest.approx(12.345, abs=0.006)
    assert "manifest.csv" in card.text
    (digest,) = space.history["data"].values()
    assert digest in card.text
    assert "triptych.load(" in card.text
    for modality in space.modalities:
        assert f"| {modality} | `{space.recipe.space.encoders[modality].name}` | trained |" in card.text
