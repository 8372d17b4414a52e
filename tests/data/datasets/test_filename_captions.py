"""Captions from file and folder names."""

import pytest

from triptych.data.datasets.filename_captions import build_caption, extract_words


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("dog_barking_03", "dog barking"),
        ("GoldenGateBridge", "golden gate bridge"),
        ("NASALaunch", "nasa launch"),
        ("2019-08-12 Lisbon", "lisbon"),
        ("my%20dog (2)", "my dog"),
        ("rain (copy)", "rain"),
        ("MVI_0012_dog", "dog"),
        ("door-wood.knock12", "door wood knock"),
        ("photo of a dog", "photo of a dog"),
        ("Anna's wedding", "anna's wedding"),
        ("Straße", "straße"),
        ("犬の鳴き声", "犬の鳴き声"),
        ("camera", "camera"),
        *(
            (name, "")
            for name in ("IMG_2034", "DSC01234", "IMG-20190812-WA0003", "PXL_20210101_123456789.MP", "P1010034")
        ),
        *(
            (name, "")
            for name in ("1-100032-A-0", "1000268201_693b08cb0e", "3f2a9c0b7d", "20190812_142233", "07", "", "a")
        ),
        *(
            (name, "")
            for name in ("untitled", "New Recording 12", "Voice 001", "Track 03", "image (3)", "Kopie von IMG_12")
        ),
        ("Screenshot 2020-01-02 at 10.12 AM", ""),
        ("\udcff\udcfe", ""),
    ],
)
def test_words_in_names_of_files(name, words):
    assert extract_words(name) == words


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Lisbon 2019", "lisbon"),
        ("heavy_rain", "heavy rain"),
        ("holiday_pictures", "holiday pictures"),
        *((name, "") for name in ("untitled folder", "untitled folder 2", "New Folder (3)", "Neuer Ordner", "DCIM")),
        *(
            (name, "")
            for name in ("100CANON", "101MSDCF", "audio", "misc", "Camera Roll", "from phone", "old laptop", "08")
        ),
    ],
)
def test_words_in_names_of_folders(name, words):
    assert extract_words(name, is_folder=True) == words


@pytest.mark.parametrize(
    ("name", "folder", "caption"),
    [
        ("barking", "dog", "barking, dog"),
        ("", "dog", "dog"),
        ("barking", "", "barking"),
        ("heavy rain on a roof", "rain", "heavy rain on a roof"),
        ("rain", "heavy rain", "heavy rain"),
        ("", "", ""),
    ],
)
def test_a_caption_has_the_words_of_both_names_once(name, folder, caption):
    assert build_caption(name, folder) == caption
