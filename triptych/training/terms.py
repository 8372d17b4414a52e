"""The recipe's objectives over the features of one batch, as named terms."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from triptych.contracts import Batch, Features, Modality, Objective, Similarity
from triptych.errors import InputError, RecipeError
from triptych.objectives import OBJECTIVES
from triptych.recipe import ObjectiveUse, Recipe
from triptych.similarities import SIMILARITIES
from triptych.space import Space


class Terms(nn.Module):
    """The recipe's objectives, one instance for each pair of modalities, as named terms over a batch."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        self.uses: list[tuple[str, Modality, Modality, ObjectiveUse]] = []
        self.objectives = nn.ModuleList()
        self.similarities: list[Similarity | None] = []
        for use in recipe.objectives:
            for a, b in use.pairs:
                own = use.similarity
                similarity = SIMILARITIES[own.name](**own.settings) if own else None
                if similarity and list(similarity.parameters()):
                    raise RecipeError(f"{use.name}: similarity {own} learns; only the space's own similarity may")
                name = f"{use.name}({a},{b})"
                again = sum(used.startswith(name) for used, *_ in self.uses)
                self.uses.append((f"{name}#{again + 1}" if again else name, a, b, use))
                self.objectives.append(OBJECTIVES[use.name](**use.settings))
                self.similarities.append(similarity)

    def forward(self, space: Space, batch: Batch, features: Mapping[Modality, Features]) -> dict[str, Tensor]:
        """Every term whose two modalities are in the batch, weighted."""
        values: dict[str, Tensor] = {}
        for (name, a, b, use), objective, similarity in zip(self.uses, self.objectives, self.similarities, strict=True):
            if a in features and b in features:
                try:
                    terms = objective(space.pair(features[a], features[b], batch, similarity))
                except InputError as error:
                    raise InputError(f"{name}: {error}") from error
                values |= {f"{name}.{term}": use.weight * value for term, value in terms.items()}
        return values

    def reads_parts(self, space: Space) -> bool:
        """Whether any term looks at parts; else they need not be made."""
        return any((similarity or space.similarity).reads_parts for similarity in self.similarities)

    def state(self) -> dict[str, float]:
        """What the objectives have to tell of themselves: temperatures, masses, how well a plan was solved."""
        return {
            f"{name}.{key}": value
            for (name, *_), objective in zip(self.uses, self.objectives, strict=True)
            if isinstance(objective, Objective)
            for key, value in objective.state().items()
        }

    def after_step(self) -> None:
        """Let each objective bring its parameters back to where they are allowed to be."""
        for objective in self.objectives:
            if isinstance(objective, Objective):
                objective.after_step()
