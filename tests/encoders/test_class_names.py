"""The class names of pretrained encoders."""

from triptych.encoders import ENCODERS
from triptych.encoders.class_names import (
    audioset_class_categories,
    audioset_class_names,
    imagenet_class_categories,
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


def test_categories_are_those_of_animals_and_of_their_sounds():
    categories, names = imagenet_class_categories(), imagenet_class_names()
    assert len(categories) == len(names)
    assert [index for index, category in enumerate(categories) if category == "dog"] == list(range(151, 269))
    cranes = [category for name, category in zip(names, categories, strict=True) if name == "crane"]
    assert cranes == ["bird", ""], "one of the cranes is a machine"
    assert (sum(map(bool, categories)), len(set(categories) - {""})) == (397, 28)
    of_sound = dict(zip(audioset_class_names(), audioset_class_categories(), strict=True))
    assert (of_sound["Bark"], of_sound["Caw"], of_sound["Speech"]) == ("dog", "crow", "")
    assert (sum(map(bool, of_sound.values())), len(set(of_sound.values()) - {""})) == (40, 21)


def test_encoders_return_a_category_for_each_class():
    assert ENCODERS["efficientnet_lite2"].class_categories() == imagenet_class_categories()
    assert ENCODERS["efficientat_mn04"].class_categories() == audioset_class_categories()
    of_sound = dict(zip(audioset_class_names(), audioset_class_categories(), strict=True))
    names, categories = ENCODERS["yamnet"].class_names(), ENCODERS["yamnet"].class_categories()
    assert dict(zip(names, categories, strict=True)) == {name: of_sound[name] for name in names}
    assert ENCODERS["image_cnn"].class_categories() == ()
