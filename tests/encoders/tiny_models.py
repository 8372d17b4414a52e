"""Tiny random models of the transformers library, saved with save_pretrained; each call takes milliseconds."""

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

WORDS = ["a", "the", "dog", "bell", "rain", "red", "blue", "barks", "rings", "falls", "loudly", "low", "high", "on"]
WORDS += ["roof", "two", "three", "birds", "sing", "slowly"]
SPECIAL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
SAMPLE_RATE = 8000


def _transformer_config(**options) -> dict[str, Any]:
    return {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "initializer_range": 0.5,  # large enough for outputs to differ
        **options,
    }


def _text_config(**options) -> dict[str, Any]:
    defaults = {"vocab_size": len(SPECIAL_TOKENS) + len(WORDS), "max_position_embeddings": 24, "pad_token_id": 0}
    return _transformer_config(**{**defaults, **options})


def _vision_config(**options) -> dict[str, Any]:
    return _transformer_config(image_size=32, patch_size=16, **options)


def save_tokenizer(folder: Path, length: int = 24) -> None:
    """A tokenizer with the vocabulary WORDS, which adds [CLS] and [SEP]."""
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(
        models.WordLevel({word: i for i, word in enumerate([*SPECIAL_TOKENS, *WORDS])}, unk_token="[UNK]")
    )
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_max_length=length,
    ).save_pretrained(folder)


def save_image_processor(folder: Path, class_name: str = "CLIPImageProcessorPil") -> None:
    """A processor to 32 × 32 pixels."""
    import transformers

    size = {"shortest_edge": 32} if class_name.startswith("CLIP") else {"height": 32, "width": 32}
    getattr(transformers, class_name)(size=size, crop_size={"height": 32, "width": 32}).save_pretrained(folder)


def save_network(network: torch.nn.Module, folder: Path) -> Path:
    """Save the weights and configuration of a network, without log output."""
    from triptych.encoders.hugging_face import silence_transformers

    with silence_transformers(show_progress=False):
        network.save_pretrained(folder)  # pyright: ignore[reportCallIssue]
    return folder


def bert(folder: Path) -> Path:
    """A text network with absolute positions."""
    from transformers import BertConfig, BertModel

    save_tokenizer(folder)
    return save_network(BertModel(BertConfig(**_text_config())), folder)


def roberta(folder: Path) -> Path:
    """A text network whose positions start after its padding id."""
    from transformers import RobertaConfig, RobertaModel

    save_tokenizer(folder, length=1 << 30)
    return save_network(RobertaModel(RobertaConfig(**_text_config(pad_token_id=1))), folder)


def t5(folder: Path) -> Path:
    """An encoder-decoder."""
    from transformers import T5Config, T5Model

    save_tokenizer(folder)
    config = T5Config(vocab_size=24, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2)
    return save_network(T5Model(config), folder)


def vit(folder: Path) -> Path:
    """A transformer over patches."""
    from transformers import ViTConfig, ViTModel

    save_image_processor(folder, "ViTImageProcessorPil")
    return save_network(ViTModel(ViTConfig(**_vision_config())), folder)


def convnext(folder: Path) -> Path:
    """A convolutional network, whose output is a feature map."""
    from transformers import ConvNextConfig, ConvNextModel

    save_image_processor(folder)
    config = ConvNextConfig(num_stages=2, hidden_sizes=[8, 16], depths=[1, 1], initializer_range=0.5)
    return save_network(ConvNextModel(config), folder)


def wav2vec2(folder: Path) -> Path:
    """A network over waveforms, with a norm over time that padding would change."""
    from transformers import Wav2Vec2Config, Wav2Vec2FeatureExtractor, Wav2Vec2Model

    Wav2Vec2FeatureExtractor(sampling_rate=SAMPLE_RATE, do_normalize=True).save_pretrained(folder)
    config = Wav2Vec2Config(
        **_transformer_config(),
        conv_dim=(8, 8),
        conv_stride=(20, 4),
        conv_kernel=(40, 4),
        num_conv_pos_embeddings=4,
        num_conv_pos_embedding_groups=2,
    )
    return save_network(Wav2Vec2Model(config), folder)


def spectrogram_transformer(folder: Path) -> Path:
    """A network over a fixed window of a spectrogram."""
    from transformers import ASTConfig, ASTFeatureExtractor, ASTModel

    ASTFeatureExtractor(sampling_rate=16_000, num_mel_bins=32, max_length=64).save_pretrained(folder)
    return save_network(ASTModel(ASTConfig(**_transformer_config(), num_mel_bins=32, max_length=64)), folder)


def whisper(folder: Path) -> Path:
    """An encoder over a fixed window, with a mask of frames."""
    from transformers import WhisperConfig, WhisperFeatureExtractor, WhisperModel

    WhisperFeatureExtractor(feature_size=16, sampling_rate=16_000, chunk_length=2).save_pretrained(folder)
    config = WhisperConfig(
        vocab_size=24,
        num_mel_bins=16,
        d_model=16,
        encoder_layers=2,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        max_source_positions=100,
        max_target_positions=8,
        pad_token_id=0,
        bos_token_id=2,
        eos_token_id=3,
        decoder_start_token_id=2,
        init_std=0.5,
    )
    return save_network(WhisperModel(config), folder)


def clip(folder: Path) -> Path:
    """Images and texts; the text embedding is that of the last special token."""
    from transformers import CLIPConfig, CLIPModel

    save_tokenizer(folder)
    save_image_processor(folder)
    text = _text_config(eos_token_id=3, bos_token_id=2)
    return save_network(
        CLIPModel(CLIPConfig(text_config=text, vision_config=_vision_config(), projection_dim=8)), folder
    )


def siglip(folder: Path) -> Path:
    """Images and texts; the text embedding is that of the last position, padding included."""
    from transformers import SiglipConfig, SiglipModel

    save_tokenizer(folder)
    save_image_processor(folder, "SiglipImageProcessorPil")
    return save_network(SiglipModel(SiglipConfig(text_config=_text_config(), vision_config=_vision_config())), folder)


def clap(folder: Path, fusion: bool = False) -> Path:
    """Audio and texts; the window is one second."""
    from transformers import ClapConfig, ClapFeatureExtractor, ClapModel

    save_tokenizer(folder, length=20)
    ClapFeatureExtractor(
        feature_size=16,
        sampling_rate=SAMPLE_RATE,
        hop_length=80,
        max_length_s=1,
        fft_window_size=256,
        frequency_max=SAMPLE_RATE // 2,
        truncation="fusion" if fusion else "rand_trunc",
    ).save_pretrained(folder)
    audio_config = {
        "patch_embeds_hidden_size": 8,
        "hidden_size": 16,
        "num_mel_bins": 16,
        "spec_size": 64,
        "window_size": 2,
        "depths": [1, 1],
        "num_attention_heads": [1, 2],
        "enable_fusion": fusion,
        "initializer_range": 0.5,
    }
    torch.manual_seed(0)
    network = ClapModel(ClapConfig(text_config=_text_config(), audio_config=audio_config, projection_dim=8))
    return save_network(network, folder)
