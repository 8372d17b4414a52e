"""The model card of a space: YAML metadata for the Hugging Face hub, then Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from triptych.interfaces import Encoder, Modality
from triptych.recipe import Recipe

RECALL_SUMMARY = "mean of R@1, R@5 and R@10"


def render_model_card(recipe: Recipe, encoders: Mapping[Modality, Encoder], history: Mapping[str, Any]) -> str:
    """Return the model card: YAML metadata for the Hugging Face hub, then Markdown."""
    space = recipe.space
    encoder_rows = [
        f"| {m} | `{space.encoders[m].name}` | {'frozen' if encoder.frozen else 'trained'} | {encoder.origin} "
        f"| {encoder.licence} |"
        for m, encoder in encoders.items()
    ]
    objectives = "; ".join(f"`{o.name}` on {', '.join(map('–'.join, o.pairs))}" for o in recipe.objectives)
    frozen_note = (
        "\nThe weights of frozen encoders are not included. They must be installed separately, under their own "
        "licences; their hash is checked when the space is loaded.\n"
    )
    packages = recipe.plugin_packages().items()
    plugins_needed = [
        f"`pip install {n}=={v}`" if v else f"`{n}` (a module that is not in a package)" for n, v in packages
    ]
    plugin_note = f"\nThe space needs plug-ins: {', '.join(plugins_needed)}.\n"
    example = '"a dog barks"' if "text" in encoders else 'pathlib.Path("dog.jpg")'
    return f"""---
{_render_card_metadata(recipe, encoders, history)}
---

# {recipe.name}

{recipe.description or "An embedding space."}

| modality | encoder | weights | origin | licence |
|---|---|---|---|---|
{chr(10).join(encoder_rows)}

Embeddings have {space.embed_dim} dimensions ({space.geometry}) and are compared by `{space.similarity.name}`.
Training objectives: {objectives or "none; this is a pretrained joint model"}.
{frozen_note if any(encoder.frozen for encoder in encoders.values()) else ""}{plugin_note if packages else ""}
## Training data

{_format_training_data(history)}

## Evaluation

{_format_score(history)}

## Usage

```python
import triptych

space = triptych.load("path/to/this/folder")
print(space.encode({example}))
```
"""


def _render_card_metadata(recipe: Recipe, encoders: Mapping[Modality, Encoder], history: Mapping[str, Any]) -> str:
    from huggingface_hub import EvalResult, ModelCardData

    card_data = ModelCardData(
        library_name="triptych",
        pipeline_tag="feature-extraction",
        tags=["triptych", "embeddings", "cross-modal-retrieval", *encoders],
    )
    if "valid" in history:
        card_data.model_name = recipe.name
        card_data.eval_results = [
            EvalResult(
                task_type="cross-modal-retrieval",
                dataset_type="manifest",
                dataset_name=", ".join(history.get("data", {})) or "unknown",
                dataset_split=recipe.data.valid_split,
                metric_type="recall",
                metric_name=f"{RECALL_SUMMARY} in %, all trained directions",
                metric_value=round(history["valid"], 2),
            )
        ]
    return card_data.to_yaml()


def _format_training_data(history: Mapping[str, Any]) -> str:
    if "data" not in history:
        return "Not recorded."
    manifests = [f"- `{name}`, SHA-256 `{digest}`" for name, digest in history["data"].items()]
    return "\n".join([f"{history.get('rows', '?')} rows, {history.get('epochs', '?')} epochs.", "", *manifests])


def _format_score(history: Mapping[str, Any]) -> str:
    if "valid" not in history:
        return "The training data had no validation split. Run `triptych evaluate` on your own data."
    summary = f"{RECALL_SUMMARY.capitalize()} on the validation split, over both directions of every trained pair"
    return f"{summary}: {history['valid']:.2f}%, slightly optimistic because this score selected the epoch."
