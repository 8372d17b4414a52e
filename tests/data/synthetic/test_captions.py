"""Generated captions: wording, grammar and word spans."""

import re

import numpy as np
import pytest

from triptych.data.synthetic import SyntheticConfig, generate, read_annotations


@pytest.mark.parametrize("fixture_name", ["easy", "hard"])
def test_captions_of_a_scene_differ_and_every_word_is_annotated(fixture_name, request):
    _, scenes = request.getfixturevalue(fixture_name)
    for scene in scenes:
        assert len({caption.text for caption in scene.captions}) == len(scene.captions)
        for caption in scene.captions:
            assert [word.text for word in caption.words] == re.findall(r"[\w-]+", caption.text)
            assert all(caption.text[word.start : word.end] == word.text for word in caption.words)
            assert re.fullmatch(r"[A-Z][\w ,;.-]*\w\.", caption.text)
            assert not re.search(r"[,;.]\s*[,;.]|  | a [aeiou]|\ban [^aeiou]", caption.text), caption.text


def test_grammar_follows_the_count(easy):
    _, scenes = easy
    for scene in scenes:
        if len(scene.objects) > 1:
            continue
        is_plural = scene.objects[0].attributes.count > 1
        for caption in scene.captions:
            category_words = [word.text for word in caption.words if word.factor == "category"]
            assert any(text.endswith("s") for text in category_words) or any(
                text.endswith("ing") for text in category_words
            )
            if is_plural and not any(text.endswith("ing") for text in category_words):
                assert sum(text.endswith("s") for text in category_words) == 1, caption.text  # bells ring, a bell rings
            assert ("Some" in caption.text or " some " in caption.text) <= is_plural


def test_hard_captions_omit_more_factors(easy, hard):
    def mean_num_factors(scenes) -> float:
        single_object_scenes = [scene for scene in scenes if len(scene.objects) == 1]
        captions = [caption for scene in single_object_scenes for caption in scene.captions]
        return float(
            np.mean([len({word.factor for word in caption.words} - {None, "occasion"}) for caption in captions])
        )

    assert mean_num_factors(hard[1]) + 1 < mean_num_factors(easy[1]) < 7


def test_captions_differ_at_the_highest_omission_rate(tmp_path):
    folder = generate(
        SyntheticConfig(scenes=10, max_objects=1, omission_rate=1.0, captions=20), tmp_path / "data"
    ).parent
    assert all(len({caption.text for caption in scene.captions}) == 20 for scene in read_annotations(folder))
