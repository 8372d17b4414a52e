"""Projection heads. To add a head, write a module here and register its class in HEADS."""

from triptych.errors import RecipeError
from triptych.heads.centred import CentredHead
from triptych.heads.class_names import ClassNamesHead
from triptych.heads.identity import IdentityHead
from triptych.heads.linear import LinearHead
from triptych.heads.mlp import MLPHead
from triptych.interfaces import Encoder, Head, Modality
from triptych.plugins import Registry
from triptych.settings import Component

HEADS: Registry[type[Head]] = Registry("head", Head, space_arguments=("input_dim", "embed_dim"))
HEADS |= {
    "linear": LinearHead,
    "mlp": MLPHead,
    "none": IdentityHead,
    "class_names": ClassNamesHead,
    "centred": CentredHead,
}


def make_head(component: Component, modality: Modality, encoder: Encoder, input_dim: int, embed_dim: int) -> Head:
    """Create the projection head of a modality, which maps pooled outputs of the encoder to embeddings."""
    try:
        head = HEADS[component.name](input_dim=input_dim, embed_dim=embed_dim, **component.settings)
        head.bind(encoder)
    except RecipeError as error:
        raise RecipeError(f"the head of {modality}: {error}") from error
    return head
