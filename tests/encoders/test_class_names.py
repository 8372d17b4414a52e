"""The class names of pretrained encoders."""

from triptych.encoders import ENCODERS
from triptych.encoders.class_names import (
    audioset_class_kinds,
    audioset_class_names,
    imagenet_class_kinds,
    imagenet_class_names,
)


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


def test_kinds_are_those_of_animals_and_of_their_sounds():
    kinds, names = imagenet_class_kinds(), imagenet_class_names()
    assert len(kinds) == len(names)
    assert [index for index, kind in enumerate(kinds) if kind == "dog"] == list(range(151, 269))
    cranes = [kind for name, kind in zip(names, kinds, strict=True) if name == "crane"]
    assert cranes == ["bird", ""], "one of the cranes is a machine"
    assert (sum(map(bool, kinds)), len(set(kinds) - {""})) == (397, 28)
    of_sound = dict(zip(audioset_class_names(), audioset_class_kinds(), strict=True))
    assert (of_sound["Bark"], of_sound["Caw"], of_sound["Speech"]) == ("dog", "crow", "")
    assert (sum(map(bool, of_sound.values())), len(set(of_sound.values()) - {""})) == (40, 21)


def test_encoders_return_a_kind_for_each_class():
    assert ENCODERS["efficientnet_lite2"].class_kinds() == imagenet_class_kinds()
    assert ENCODERS["efficientat_mn04"].class_kinds() == audioset_class_kinds()
    of_sound = dict(zip(audioset_class_names(), audioset_class_kinds(), strict=True))
    names, kinds = ENCODERS["yamnet"].class_names(), ENCODERS["yamnet"].class_kinds()
    assert dict(zip(names, kinds, strict=True)) == {name: of_sound[name] for name in names}
    assert ENCODERS["image_cnn"].class_kinds() == ()
