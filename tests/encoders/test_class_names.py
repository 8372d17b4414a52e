"""The class names of pretrained encoders."""

from triptych.encoders import ENCODERS
from triptych.encoders.class_names import audioset_class_names, imagenet_class_names


def test_imagenet_class_names():
    names = imagenet_class_names()
    assert len(names) == 1000
    assert (names[0], names[207], names[779]) == ("tench, Tinca tinca", "golden retriever", "school bus")
    assert (names[151], names[268]) == ("Chihuahua", "Mexican hairless")
    assert names[-1] == "toilet tissue, toilet paper, bathroom tissue"
    assert all(name and name == name.strip() for name in names)


def test_audioset_class_names():
    names = audioset_class_names()
    assert (len(names), len(set(names))) == (527, 527)
    assert (names[0], names[74], names[-1]) == ("Speech", "Dog", "Field recording")
    assert all(name and name == name.strip() for name in names)
    yamnet_names = ENCODERS["yamnet"].class_names()
    assert len(yamnet_names) == 521
    assert set(yamnet_names) < set(names)
