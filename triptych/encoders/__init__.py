"""Encoders of media files and texts.

To add an encoder, write a module in this package and register the class of the encoder in ENCODERS.
"""

from triptych.encoders.audio_cnn import AudioCNN
from triptych.encoders.audio_conv1d import AudioConv1d
from triptych.encoders.backbone import HuggingFaceAudio, HuggingFaceImage, HuggingFaceText
from triptych.encoders.efficientat import EfficientAT
from triptych.encoders.efficientnet_lite import EfficientNetLite0, EfficientNetLite2
from triptych.encoders.image_cnn import ImageCNN
from triptych.encoders.image_conv2d import ImageConv2d
from triptych.encoders.joint import JointAudio, JointImage, JointText
from triptych.encoders.minilm import MiniLM
from triptych.encoders.soundnet import SoundNet
from triptych.encoders.speech_cnn import SpeechCNN
from triptych.encoders.text_conv1d import TextConv1d
from triptych.encoders.text_transformer import TextTransformer
from triptych.encoders.universal_sentence_encoder import UniversalSentenceEncoder
from triptych.encoders.yamnet import YAMNet
from triptych.interfaces import Encoder
from triptych.plugins import Registry

ENCODERS: Registry[type[Encoder]] = Registry("encoder", Encoder, required_attributes=("modality", "part_name"))
ENCODERS |= {
    "audio_cnn": AudioCNN,
    "image_cnn": ImageCNN,
    "text_transformer": TextTransformer,
    "audio_conv1d": AudioConv1d,
    "speech_cnn": SpeechCNN,
    "image_conv2d": ImageConv2d,
    "text_conv1d": TextConv1d,
    "efficientnet_lite0": EfficientNetLite0,
    "efficientnet_lite2": EfficientNetLite2,
    "efficientat_mn04": EfficientAT,
    "yamnet": YAMNet,
    "soundnet": SoundNet,
    "minilm": MiniLM,
    "use_multilingual": UniversalSentenceEncoder,
    "hf_image": HuggingFaceImage,
    "hf_audio": HuggingFaceAudio,
    "hf_text": HuggingFaceText,
    "joint_image": JointImage,
    "joint_audio": JointAudio,
    "joint_text": JointText,
}
