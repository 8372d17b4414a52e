"""Tiny random joint models of the transformers library: every type that embeds two or more modalities in one space."""

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from tests.encoders import tiny_models
from tests.encoders.tiny_models import SAMPLE_RATE, WORDS, save_network, save_tokenizer

TEXT: dict[str, Any] = {
    "vocab_size": len(tiny_models.SPECIAL_TOKENS) + len(WORDS),
    "max_position_embeddings": 24,
    "pad_token_id": 0,
    "bos_token_id": 2,
    "eos_token_id": 3,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "initializer_range": 0.5,
}
VISION: dict[str, Any] = {name: TEXT[name] for name in list(TEXT)[5:]} | {"image_size": 32, "patch_size": 16}
ALIGN_VISION = {
    "image_size": 32,
    "hidden_dim": 16,
    "in_channels": [32] + [8] * 6,
    "out_channels": [8] * 7,
    "num_block_repeats": [1] * 7,
    "depth_coefficient": 1.0,
    "width_coefficient": 1.0,
    "initializer_range": 0.5,
}
GROUP_VISION = {
    "depths": [1, 1, 1],
    "num_hidden_layers": 3,
    "num_group_tokens": [4, 2, 0],
    "num_output_groups": [4, 2, 0],
}
# Types with a method for each modality: the configurations of texts and images, and the class of the image processor.
IMAGE_TEXT_MODELS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "aimv2": (TEXT, VISION, "CLIPImageProcessorPil"),
    "align": (TEXT, ALIGN_VISION, "EfficientNetImageProcessorPil"),
    "altclip": (TEXT | {"pad_token_id": 1, "project_dim": 16}, VISION, "CLIPImageProcessorPil"),
    "blip": (TEXT, VISION, "BlipImageProcessorPil"),
    "chinese_clip": (TEXT, VISION, "ChineseCLIPImageProcessorPil"),
    "clip": (TEXT, VISION, "CLIPImageProcessorPil"),
    "clipseg": (TEXT, VISION, "ViTImageProcessorPil"),
    "groupvit": (TEXT, VISION | GROUP_VISION, "CLIPImageProcessorPil"),
    "metaclip_2": (TEXT, VISION, "CLIPImageProcessorPil"),
    "owlvit": (TEXT, VISION, "OwlViTImageProcessorPil"),
    "siglip": (TEXT, VISION, "SiglipImageProcessorPil"),
    "siglip2": (TEXT, {**VISION, "patch_size": 4, "num_patches": 16}, "Siglip2ImageProcessorPil"),
}
MODALITIES = {
    **dict.fromkeys(IMAGE_TEXT_MODELS, ("image", "text")),
    "vision-text-dual-encoder": ("image", "text"),
    "clap": ("audio", "text"),
    "pe_audio": ("audio", "text"),
    "pe_audio_video": ("audio", "text"),
    "embedding_gemma2": ("image", "audio", "text"),
}


def save_model(model_type: str, folder: Path) -> Path:
    """Save a tiny random model of a type with its preprocessing."""
    torch.manual_seed(0)
    if model_type in IMAGE_TEXT_MODELS:
        return _save_image_text_model(model_type, folder)
    if model_type == "clap":
        return tiny_models.clap(folder)
    if model_type == "vision-text-dual-encoder":
        return _save_dual_encoder(folder)
    return _save_language_model(folder) if model_type == "embedding_gemma2" else _save_audio_model(model_type, folder)


def _save_image_text_model(model_type: str, folder: Path) -> Path:
    import transformers

    text, vision, processor = IMAGE_TEXT_MODELS[model_type]
    size = {"shortest_edge": 32} if "CLIP" in processor else {"height": 32, "width": 32}
    options = {"size": size, "crop_size": {"height": 32, "width": 32}}
    if model_type == "siglip2":
        options = {"patch_size": 4, "max_num_patches": 16}
    getattr(transformers, processor)(**options).save_pretrained(folder)
    save_tokenizer(folder)
    dims = {} if "siglip" in model_type else {"projection_dim": 8}
    if model_type == "groupvit":
        dims["projection_intermediate_dim"] = 8
    config = transformers.AutoConfig.for_model(model_type, text_config=dict(text), vision_config=dict(vision), **dims)
    return save_network(transformers.AutoModel.from_config(config), folder)


def _save_dual_encoder(folder: Path) -> Path:
    from transformers import BertConfig, VisionTextDualEncoderConfig, VisionTextDualEncoderModel, ViTConfig

    tiny_models.save_image_processor(folder, "ViTImageProcessorPil")
    save_tokenizer(folder)
    vision, text = ViTConfig(**VISION), BertConfig(**TEXT)
    config = VisionTextDualEncoderConfig.from_vision_text_configs(vision, text, projection_dim=8)
    return save_network(VisionTextDualEncoderModel(config), folder)


def _save_audio_model(model_type: str, folder: Path) -> Path:
    """Audio and texts, with a head for each. The audio-video model has these weights under other names."""
    from safetensors.torch import load_file, save_file
    from transformers import PeAudioConfig, PeAudioFeatureExtractor, PeAudioModel, PeAudioVideoConfig

    codec = {"encoder_hidden_size": 4, "downsampling_ratios": [2, 4], "codebook_dim": 8, "hidden_size": 16}
    codec |= {"model_type": "dac", "upsampling_ratios": [4, 2], "decoder_hidden_size": 8, "n_codebooks": 1}
    audio = {**VISION, "dac_config": codec, "head_dim": 8}
    del audio["image_size"], audio["patch_size"]
    text = {**TEXT, "model_type": "modernbert", "cls_token_id": 2, "sep_token_id": 3, "local_attention": 8}
    save_tokenizer(folder)
    PeAudioFeatureExtractor(sampling_rate=SAMPLE_RATE, hop_length=8).save_pretrained(folder)
    save_network(PeAudioModel(PeAudioConfig(text_config=text, audio_config=audio)), folder)
    if model_type == "pe_audio_video":
        video = {"vision_config": {"architecture": "vit_tiny_patch16_224"}, "hidden_size": 16}
        encoders = {"audio_config": audio, "video_config": video, "hidden_size": 16}
        PeAudioVideoConfig(text_config=text, audio_video_config=encoders).save_pretrained(folder)
        weights = load_file(folder / "model.safetensors")
        renamed = {n if n.startswith("text_model.") else f"audio_model.{n}": w for n, w in weights.items()}
        save_file(renamed, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


MEDIA_TOKENS = {
    "boi_token": "<|image>",
    "image_token": "<|image|>",
    "eoi_token": "<image|>",
    "boa_token": "<|audio>",
    "audio_token": "<|audio|>",
    "eoa_token": "<audio|>",
}
PROMPT_WORDS = ["task", ":", "search", "result", "|", "query", "title", "none", "text"]


def _save_language_model(folder: Path) -> Path:
    """Texts, images and audio, read by one bidirectional language model."""
    from transformers import EmbeddingGemma2Config, EmbeddingGemma2Model, PreTrainedTokenizerFast
    from transformers.models.gemma4.feature_extraction_gemma4 import Gemma4AudioFeatureExtractor
    from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil

    words = ["<pad>", "<eos>", "<bos>", "<unk>", *MEDIA_TOKENS.values(), "<|video|>", *WORDS, *PROMPT_WORDS]
    ids = {word: i for i, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.Whitespace()
    special = [("<bos>", 2), ("<eos>", 1)]
    tokenizer.post_processor = processors.TemplateProcessing(single="<bos> $A <eos>", special_tokens=special)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="<eos>",
        bos_token="<bos>",
        unk_token="<unk>",
        padding_side="left",
        extra_special_tokens=MEDIA_TOKENS,
    ).save_pretrained(folder)
    image = Gemma4ImageProcessorPil(patch_size=4, max_soft_tokens=70, pooling_kernel_size=2)
    audio = Gemma4AudioFeatureExtractor(feature_size=16, sampling_rate=SAMPLE_RATE, max_frequency=SAMPLE_RATE / 2)
    parts = {"image_processor": image.to_json_string(), "feature_extractor": audio.to_json_string()}
    parts = {name: json.loads(text) for name, text in parts.items()}
    (folder / "processor_config.json").write_text(json.dumps({"processor_class": "EmbeddingGemma2Processor", **parts}))
    heads = {"num_attention_heads": 2, "head_dim": 8, "num_hidden_layers": 2, "initializer_range": 0.5}
    sizes = {**heads, "hidden_size": 16, "intermediate_size": 32, "num_key_value_heads": 2}
    text = {**sizes, "vocab_size": len(words), "max_position_embeddings": 64, "embedding_dim": 12, "sliding_window": 8}
    text |= {"global_head_dim": 8, "hidden_size_per_layer_input": 8, "sliding_window_pattern": 2}
    vision = {**sizes, "model_type": "gemma4_vision", "patch_size": 4, "pooling_kernel_size": 2}
    conformer = {"model_type": "gemma4_audio", "subsampling_conv_channels": [16, 4], "output_proj_dims": 24}
    config = EmbeddingGemma2Config(
        text_config=text,
        vision_config=vision | {"position_embedding_size": 64, "default_output_length": 70},
        audio_config=conformer | {name: sizes[name] for name in (*list(heads)[:1], *list(heads)[2:], "hidden_size")},
        image_token_id=ids["<|image|>"],
        audio_token_id=ids["<|audio|>"],
        video_token_id=ids["<|video|>"],
    )
    return save_network(EmbeddingGemma2Model(config), folder)
