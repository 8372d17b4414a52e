"""Class-names head: the mean of the text embeddings of class names, weighted by class probabilities."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from triptych.errors import RecipeError, check_range
from triptych.interfaces import Encoder, Head

MIN_PROBABILITY = 1e-30  # smaller probabilities have the weight of this probability, so that the logarithm is finite
PLACEHOLDER = "{}"  # the name of a class replaces the placeholder in a prompt


class ClassNamesHead(Head):
    """The mean of the text embeddings of class names, weighted by the class probabilities of the encoder.

    y = Σ_c w_c e_c,  w = softmax(log(p) / temperature) over the top_k most probable classes c
    p are the class probabilities of the encoder for x. e_c is the mean of the text embeddings of class c in all
    prompts, centred and decorrelated. With categories = true, the category of a class, such as dog for a breed of
    dogs, is also a name of the class. top_k = 0 means all classes.

    Source: Norouzi et al. 2013 (ConSE), with centred and decorrelated embeddings.
    Use when: the encoder is a classifier, and you have no pairs to train on; or as the start of training.
    Beware: the space knows only the classes of the encoder: two images with the same class probabilities get the same
    embedding. The e_c are computed from the text encoder of the space, so the space needs a text encoder whose outputs
    are sentence embeddings, such as `minilm`. They are parameters, so training changes them.
    """

    def __init__(
        self,
        input_dim: int,
        embed_dim: int,
        prompts: tuple[str, ...] = (PLACEHOLDER,),
        temperature: float = 1.0,
        top_k: int = 0,
        decorrelation: float = 0.0,
        categories: bool = False,
    ) -> None:
        super().__init__()
        check_range("class_names: temperature", temperature, 1e-3, 1e3)
        check_range("class_names: top_k", top_k, 0, 1 << 16)
        check_range("class_names: decorrelation", decorrelation, 0, 1e6)
        if not prompts or any(PLACEHOLDER not in prompt for prompt in prompts):
            raise RecipeError(
                f"class_names: prompts = {list(prompts)}; each prompt needs a {PLACEHOLDER} for the name, for example "
                f"'the sound of {PLACEHOLDER}'"
            )
        self.input_dim, self.embed_dim = input_dim, embed_dim
        self.prompts, self.temperature, self.top_k = prompts, temperature, top_k
        self.decorrelation, self.categories = decorrelation, categories
        self.class_names: tuple[str, ...] = ()
        self.class_categories: tuple[str, ...] = ()

    def bind(self, encoder: Encoder) -> None:
        """Use the classes of an encoder; raise RecipeError if the encoder has no classes."""
        self.class_names = encoder.class_names()
        self.class_categories = encoder.class_categories() or ("",) * len(self.class_names)
        if not self.class_names or encoder.feature_dim != self.input_dim:
            problem = "the encoder is not a classifier" if not self.class_names else 'pooling must be "mean"'
            raise RecipeError(
                f"class_names: {problem}; set an encoder with classes, such as efficientnet_lite0 or "
                'efficientat_mn04, and space.pooling = "mean"'
            )
        # A method is not a module, so the encoder does not become a part of the head.
        self._class_probabilities: Callable[[Tensor], Tensor | None] = encoder.class_probabilities
        self.class_embeddings = nn.Parameter(torch.zeros(len(self.class_names), self.embed_dim))

    def class_phrases(self) -> list[list[str]]:
        """Return the texts of each class: every prompt with the name, and with the category."""
        names = [
            [name.lower(), category] if self.categories and category else [name.lower()]
            for name, category in zip(self.class_names, self.class_categories, strict=True)
        ]
        return [[prompt.replace(PLACEHOLDER, text) for text in texts for prompt in self.prompts] for texts in names]

    @torch.no_grad()
    def load_class_embeddings(self, embeddings: Tensor, removed_directions: Tensor) -> None:
        """Set the e_c from the mean embedding of the phrases of each class (C, D), without K directions (K, D).

        The directions are orthonormal.
        """
        decorrelated = decorrelate(embeddings, self.decorrelation)
        self.class_embeddings.copy_(decorrelated - decorrelated @ removed_directions.T @ removed_directions)

    def class_weights(self, x: Tensor) -> Tensor:
        """Return the weight of each class, which are at least 0 and sum to 1: (..., input_dim) becomes (..., C)."""
        probabilities = self._class_probabilities(x.reshape(-1, self.input_dim))
        if probabilities is None:
            raise RecipeError("class_names: the encoder returns no class probabilities")
        logits = probabilities.clamp_min(MIN_PROBABILITY).log() / self.temperature
        if 0 < self.top_k < logits.shape[1]:
            smallest = logits.topk(self.top_k, dim=1).values[:, -1:]
            logits = logits.masked_fill(logits < smallest, -torch.inf)
        return logits.softmax(dim=1).reshape(*x.shape[:-1], -1)

    def forward(self, x: Tensor) -> Tensor:
        """Project (..., input_dim) to (..., embed_dim)."""
        return self.class_weights(x) @ self.class_embeddings


def decorrelate(embeddings: Tensor, strength: float) -> Tensor:
    """Centre embeddings (C, D), and shrink the directions in which they vary most; strength 0 only centres them.

    e'_c = (I + strength · Σ / σ)⁻¹ (e_c − m), with the mean m, the covariance Σ and the mean variance σ = tr Σ / D
    """
    centred = (embeddings - embeddings.mean(dim=0)).double()
    covariance = centred.T @ centred / len(centred)
    variance = covariance.trace().clamp_min(1e-12) / len(covariance)
    identity = torch.eye(len(covariance), dtype=torch.float64)
    return torch.linalg.solve(identity + strength * covariance / variance, centred.T).T.to(embeddings.dtype)
