"""Sources to parts. A new encoder is one file here and one line in ENCODERS."""

from triptych.contracts import Encoder
from triptych.encoders.audio_cnn import AudioCNN
from triptych.encoders.image_cnn import ImageCNN
from triptych.encoders.text_transformer import TextTransformer

ENCODERS: dict[str, type[Encoder]] = {
    "audio_cnn": AudioCNN,
    "image_cnn": ImageCNN,
    "text_transformer": TextTransformer,
}
