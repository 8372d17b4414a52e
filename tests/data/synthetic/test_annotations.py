"""Annotations of caption words against the factors of their objects."""

from collections import Counter

import pytest

from triptych.data.synthetic import FACTORS, phrases_for, read_annotations
from triptych.errors import UsageError


def test_words_match_the_factors_of_their_object(easy):
    _, scenes = easy
    counts = Counter()
    for scene in scenes:
        for word in (word for caption in scene.captions for word in caption.words):
            if word.factor in ("colour", "tempo", "height", "side", "timing", "count"):
                (index,) = word.object_indices
                value = str(getattr(scene.objects[index].attributes, word.factor))
                assert word.text.lower() in {w for phrase in phrases_for(word.factor, value) for w in phrase.split()}
                counts[word.factor, value] += 1
    assert all(counts[name, value] for name in ("colour", "tempo", "height") for value in FACTORS[name].values)


def test_words_have_boxes_and_times_only_where_their_factor_shows(easy):
    _, scenes = easy
    for scene in scenes:
        for word in (word for caption in scene.captions for word in caption.words):
            mentioned_objects = [scene.objects[index] for index in word.object_indices]
            is_visible = word.factor in ("category", "count", "height", "colour", "side")
            is_audible = word.factor in ("category", "count", "height", "tempo", "timing")
            assert word.boxes == (tuple(box for each in mentioned_objects for box in each.boxes) if is_visible else ())
            assert word.time_spans == (
                tuple(note for each in mentioned_objects for note in each.notes) if is_audible else ()
            )
            assert bool(word.object_indices) == (word.factor not in (None, "occasion"))


def test_read_annotations_of_another_folder_raises(tmp_path):
    with pytest.raises(UsageError, match="give a folder of synthetic data"):
        read_annotations(tmp_path)
