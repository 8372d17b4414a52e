"""The objectives of a recipe, computed over the features of a batch as named loss terms."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import Tensor, nn

from triptych.errors import InputError, RecipeError
from triptych.interfaces import Batch, Features, Modality, Similarity
from triptych.objectives import OBJECTIVES
from triptych.objectives.objective import Objective
from triptych.recipe import ObjectiveConfig, Recipe
from triptych.similarities import SIMILARITIES
from triptych.space import Space


class ObjectiveSet(nn.Module):
    """The objectives of a recipe, one instance per pair of modalities."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        self.entries: list[tuple[str, Modality, Modality, ObjectiveConfig]] = []
        self.objectives = nn.ModuleList()
        self.similarities: list[Similarity | None] = []
        for config in recipe.objectives:
            for a, b in config.pairs:
                component = config.similarity
                similarity = SIMILARITIES[component.name](**component.settings) if component else None
                if similarity and list(similarity.parameters()):
                    problem = f"{config.name}: similarity {component} has trainable parameters"
                    raise RecipeError(f"{problem}; only space.similarity may have trainable parameters")
                name = f"{config.name.rpartition(':')[2]}({a},{b})"  # of module:Class, the class
                num_same = sum(entry_name.startswith(name) for entry_name, *_ in self.entries)
                self.entries.append((f"{name}#{num_same + 1}" if num_same else name, a, b, config))
                self.objectives.append(OBJECTIVES[config.name](**config.settings))
                self.similarities.append(similarity)

    def forward(self, space: Space, batch: Batch, features: Mapping[Modality, Features]) -> dict[str, Tensor]:
        """Return the weighted loss terms of all pairs whose two modalities are in the batch."""
        values: dict[str, Tensor] = {}
        for entry, objective, similarity in zip(self.entries, self._iter_objectives(), self.similarities, strict=True):
            name, a, b, config = entry
            if a in features and b in features:
                try:
                    terms = objective.terms(space.make_pair(features[a], features[b], batch, similarity))
                except InputError as error:
                    raise InputError(f"{name}: {error}") from error
                values |= {f"{name}.{term}": config.weight * value for term, value in terms.items()}
        return values

    def reads_parts(self, space: Space) -> bool:
        """Return whether any similarity reads parts. If none does, parts need not be computed."""
        return any((similarity or space.similarity).reads_parts for similarity in self.similarities)

    def metrics_to_log(self) -> dict[str, float]:
        """Return the metrics that the objectives log in addition to their loss terms, such as temperatures."""
        return {
            f"{name}.{key}": value
            for (name, *_), objective in zip(self.entries, self._iter_objectives(), strict=True)
            for key, value in objective.metrics_to_log().items()
        }

    def after_step(self) -> None:
        """Project the parameters of each objective to their valid range."""
        for objective in self._iter_objectives():
            objective.after_step()

    def _iter_objectives(self) -> Iterator[Objective]:
        """Iterate over the objectives with their type, which ModuleList does not keep."""
        return (objective for objective in self.objectives if isinstance(objective, Objective))
