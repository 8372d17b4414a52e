"""Projection heads. To add a head, write a module here and register its class in HEADS."""

from triptych.heads.centred import CentredHead
from triptych.heads.class_names import ClassNamesHead
from triptych.heads.identity import IdentityHead
from triptych.heads.linear import LinearHead
from triptych.heads.mlp import MLPHead
from triptych.interfaces import Head
from triptych.plugins import Registry

HEADS: Registry[type[Head]] = Registry("head", Head, space_arguments=("input_dim", "embed_dim"))
HEADS |= {
    "linear": LinearHead,
    "mlp": MLPHead,
    "none": IdentityHead,
    "class_names": ClassNamesHead,
    "centred": CentredHead,
}
