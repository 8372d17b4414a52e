"""What lies beside a space's weights for people and for the Hugging Face hub: config, recipe, tokenizer, model card."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from triptych import __version__
from triptych.interfaces import Encoder, Modality
from triptych.recipe import Recipe
from triptych.saved import CONFIG_FILE

MODEL_CARD_FILE, RECIPE_FILE = "README.md", "recipe.toml"


def render_pretrained_files(
    recipe: Recipe, encoders: Mapping[Modality, Encoder], history: Mapping[str, Any]
) -> dict[str, str]:
    """Every text file of a shared space by its name."""
    config = {
        "model_type": "triptych",
        "architectures": ["Space"],
        "triptych_version": __version__,
        "modalities": list(encoders),
        "embed_dim": recipe.space.embed_dim,
        "geometry": recipe.space.geometry,
        "similarity": recipe.space.similarity.name,
        "encoders": {m: component.name for m, component in recipe.space.encoders.items()},
    }
    files = {CONFIG_FILE: json.dumps(config, indent=2) + "\n", RECIPE_FILE: recipe.to_toml()}
    for modality, encoder in encoders.items():
        for name, text in encoder.extra_files().items():
            files[name if modality == "text" else f"{modality}_{name}"] = text
    return files | {MODEL_CARD_FILE: render_model_card(recipe, encoders, history)}


def render_model_card(recipe: Recipe, encoders: Mapping[Modality, Encoder], history: Mapping[str, Any]) -> str:
    """The model card, as the hub reads it: facts as YAML, then words."""
    space = recipe.space
    rows = [
        f"| {m} | `{space.encoders[m].name}` | {'frozen' if encoder.frozen else 'trained'} | {encoder.origin} "
        f"| {encoder.licence} |"
        for m, encoder in encoders.items()
    ]
    objectives = [
        f"`{objective.name}` on {', '.join('–'.join(pair) for pair in objective.pairs)}"
        for objective in recipe.objectives
    ]
    frozen_encoders = [encoder for encoder in encoders.values() if encoder.frozen]
    frozen_note = (
        "The weights of frozen encoders are not in these files: they come with their own packages or files, under "
        "their own licences, and are checked by a hash when the space is loaded."
    )
    return "\n".join(
        [
            *_front_matter(recipe, encoders, history),
            f"# {recipe.name}",
            "",
            recipe.description or "An embedding space.",
            "",
            "| takes | encoder | weights | origin | licence |",
            "|---|---|---|---|---|",
            *rows,
            "",
            f"Embeddings have {space.embed_dim} numbers ({space.geometry}), compared by `{space.similarity.name}`. "
            f"It learned from {'; '.join(objectives) or 'nothing of ours: it is a ready-made model'}.",
            *(["", frozen_note] if frozen_encoders else []),
            "",
            "## Trained on",
            "",
            *_format_training_data(history),
            "",
            "## Scores",
            "",
            *_format_scores(history),
            "",
            "## Use",
            "",
            "```python",
            "import triptych",
            "",
            'space = triptych.load("path/to/this/folder")',
            f"features = space.embed_one(triptych.Source({_format_example_arguments(encoders)}))",
            "print(features.embedding)",
            "```",
            "",
        ]
    )


def _front_matter(recipe: Recipe, encoders: Mapping[Modality, Encoder], history: Mapping[str, Any]) -> list[str]:
    tags = ["triptych", "embeddings", "cross-modal-retrieval", *encoders]
    lines = ["---", "library_name: triptych", "pipeline_tag: feature-extraction", "tags:", *(f"- {t}" for t in tags)]
    if "valid" in history:
        lines += [
            "model-index:",
            f"- name: {json.dumps(recipe.name)}",
            "  results:",
            "  - task:",
            "      type: cross-modal-retrieval",
            "    dataset:",
            f"      name: {json.dumps(', '.join(history.get('data', {})) or 'unknown')}",
            "      type: manifest",
            f"      split: {json.dumps(recipe.data.valid_split)}",
            "    metrics:",
            "    - type: recall",
            "      name: mean of R@1, R@5 and R@10 in %, all trained directions",
            f"      value: {history['valid']:.2f}",
        ]
    return [*lines, "---", ""]


def _format_training_data(history: Mapping[str, Any]) -> list[str]:
    if "data" not in history:
        return ["Nothing is noted of its training."]
    manifests = [f"- `{name}`, SHA-256 `{digest}`" for name, digest in history["data"].items()]
    return [f"{history.get('rows', '?')} rows, {history.get('epochs', '?')} epochs.", "", *manifests]


def _format_scores(history: Mapping[str, Any]) -> list[str]:
    if "valid" not in history:
        return ["No rows were kept for validation; `triptych evaluate` measures it on yours."]
    summary = "Mean of R@1, R@5 and R@10 on the validation rows, over both directions of every trained pair"
    return [f"{summary}: {history['valid']:.2f}%. This epoch was chosen by that number, so it flatters a little."]


def _format_example_arguments(encoders: Mapping[Modality, Encoder]) -> str:
    return '"text", "a dog barks"' if "text" in encoders else '"image", pathlib.Path("dog.jpg")'
