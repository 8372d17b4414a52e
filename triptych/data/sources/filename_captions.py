"""Names of files and folders to captions: the words in them, where they say anything about the content."""

from __future__ import annotations

import re
import unicodedata
from urllib.parse import unquote


def _word_set(text: str) -> frozenset[str]:
    return frozenset(text.split())


# What cameras, phones and programs put into names; never part of a caption.
TECHNICAL_WORDS = _word_set(
    """
    img imag dsc dscn dscf dscs cimg hpim pict sdc pxl mvi gopr gx gh dji mov vid wa mg mp fullsizerender jpg
    jpeg png gif tif tiff bmp heic webp psd wav ogg flac aac avi mkv mp3 mp4 m4a copy kopie copie copia kopia
    """
)
# Words that say nothing about a content by themselves: a name of nothing else is no caption. In this order: places to
# put files, kinds of files, devices and programs, times, what systems in other languages call new folders and files.
GENERIC_WORDS = _word_set(
    """
    untitled unnamed unknown noname new folder folders directory dir file files document documents download
    downloads desktop misc miscellaneous various other others stuff things unsorted sorted inbox archive archives
    backup backups old tmp temp cache data dataset datasets raw original originals upload uploads shared sent
    received export exports exported import imports imported output outputs input album albums collection
    collections favourites favorites project projects part vol volume version final edit edited draft
    audio audios sound sounds recording recordings recorded record rec voice voices memo memos track tracks clip
    clips sample samples photo photos photograph photographs image images picture pictures pic pics video videos
    film films movie movies media text texts caption captions screenshot screenshots capture captures scan scans
    scanned take takes dcim sam
    canon nikon sony olympus panasonic fujifilm msdcf eos zoom tascam iphone ipad android samsung whatsapp telegram
    instagram facebook google takeout dropbox icloud onedrive freesound youtube
    january february april may june july august september october november december jan feb mar apr jun jul aug sep
    sept oct nov dec monday tuesday wednesday thursday friday saturday sunday mon tue wed thu fri am pm today
    yesterday
    neuer ordner unbenannt unbenannter bild bilder foto fotos aufnahme aufnahmen nouveau dossier sans titre
    enregistrement nueva carpeta sin título titulo grabación grabacion imágenes nova pasta sem nuova cartella senza
    titolo 新しいフォルダー 新建文件夹
    """
)
# Words that name things in the name of a file, but places to put files in the name of a folder.
GENERIC_FOLDER_WORDS = _word_set(
    """
    camera roll phone apple laptop computer pc mac disk drive usb sd card signal screen shots music songs musik
    musique library gallery home work user users private public field cd dvd disc year month day march sun sat trash
    """
)
# Words that only join others.
FUNCTION_WORDS = _word_set(
    """
    a an the of from to at on in and or my our your with for by is von vom der die das und mit de du des la le les
    et en el los las y o da do di il e
    """
)
WORD = re.compile(r"[^\W_]+(?:['’][^\W\d_]+)*")
CAMEL_CASE = re.compile(r"(?<=[a-zß-öø-ÿ])(?=[A-ZÀ-ÖØ-Þ])|(?<=[A-ZÀ-ÖØ-Þ])(?=[A-ZÀ-ÖØ-Þ][a-zß-öø-ÿ])")
DIGITS = re.compile(r"\d+")
HEXADECIMAL = re.compile(r"(?=.*\d)[0-9a-f]{8,}")


def extract_words(name: str, is_folder: bool = False) -> str:
    """The words of a file's or folder's name in small letters; "" where they say nothing about the content.

    "GoldenGate_Bridge-02" gives "golden gate bridge"; "IMG_2034", "untitled folder 2" and "3f2a9c0b7d" give "".
    """
    words: list[str] = []
    for token in WORD.findall(unicodedata.normalize("NFC", unquote(name, errors="replace"))):
        words += _split_token(token)
    words = [word for word in words if word not in TECHNICAL_WORDS]
    meaningless = GENERIC_WORDS | FUNCTION_WORDS | (GENERIC_FOLDER_WORDS if is_folder else frozenset())
    return "" if meaningless.issuperset(words) else " ".join(words)


def build_caption(name: str, folder: str) -> str:
    """One caption from the words of a file's name and of its folder, either of which may be ""."""
    name_words, folder_words = set(name.split()), set(folder.split())
    if not name or not folder or folder_words <= name_words:
        return name or folder
    return folder if name_words <= folder_words else f"{name}, {folder}"


def _split_token(token: str) -> list[str]:
    """The words of a token without white space; codes and numbers give none."""
    lowercase = token.lower()
    if lowercase in TECHNICAL_WORDS or lowercase in GENERIC_WORDS:
        return [lowercase]
    letter_runs = DIGITS.split(token)
    # Digits before or after a word count things; letters and digits in turn are a code, as are hexadecimal digits.
    if sum(bool(piece) for piece in letter_runs) > 1 or HEXADECIMAL.fullmatch(lowercase):
        return []
    letters = "".join(letter_runs)
    words = [letters.lower()] if letters.lower() in GENERIC_WORDS else CAMEL_CASE.sub(" ", letters).lower().split()
    return [word for word in words if len(word) > 1 or word in FUNCTION_WORDS or not word.isascii()]
