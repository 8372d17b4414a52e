"""Extract captions from file and folder names that describe the content of a file."""

import re
import unicodedata
from urllib.parse import unquote


def _word_set(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Words that cameras, phones and programs put into file names. These words are never part of a caption.
TECHNICAL_WORDS = _word_set(
    """
    img imag dsc dscn dscf dscs cimg hpim pict sdc pxl mvi gopr gx gh dji mov vid wa mg mp fullsizerender jpg
    jpeg png gif tif tiff bmp heic webp psd wav ogg flac aac avi mkv mp3 mp4 m4a copy kopie copie copia kopia
    """
)
# Words that do not describe content. A name that consists only of these words gives no caption. The order is: storage
# folders, file types, devices and programs, dates, default names of folders and files in other languages.
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
# Words that can describe content in a file name, but not in a folder name.
GENERIC_FOLDER_WORDS = _word_set(
    """
    camera roll phone apple laptop computer pc mac disk drive usb sd card signal screen shots music songs musik
    musique library gallery home work user users private public field cd dvd disc year month day march sun sat trash
    """
)
# Articles, prepositions and conjunctions.
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
    """Return the words of a file or folder name in lower case; "" if they do not describe the content.

    "GoldenGate_Bridge-02" gives "golden gate bridge"; "IMG_2034", "untitled folder 2" and "3f2a9c0b7d" give "".
    """
    tokens = WORD.findall(unicodedata.normalize("NFC", unquote(name, errors="replace")))
    words = [word for token in tokens for word in _split_token(token) if word not in TECHNICAL_WORDS]
    meaningless = GENERIC_WORDS | FUNCTION_WORDS | (GENERIC_FOLDER_WORDS if is_folder else frozenset())
    return "" if meaningless.issuperset(words) else " ".join(words)


def build_caption(name: str, folder: str) -> str:
    """Build a caption from the words of a file name and the words of a folder name. Both can be ""."""
    name_words, folder_words = set(name.split()), set(folder.split())
    if not name or not folder or folder_words <= name_words:
        return name or folder
    return folder if name_words <= folder_words else f"{name}, {folder}"


def _split_token(token: str) -> list[str]:
    """Split a token into words. Codes and numbers give no words."""
    lowercase = token.lower()
    if lowercase in TECHNICAL_WORDS or lowercase in GENERIC_WORDS:
        return [lowercase]
    letter_runs = DIGITS.split(token)
    # Digits before or after a word are a counter. Alternating letters and digits, or hexadecimal digits, are a code.
    if sum(bool(run) for run in letter_runs) > 1 or HEXADECIMAL.fullmatch(lowercase):
        return []
    letters = "".join(letter_runs)
    words = [letters.lower()] if letters.lower() in GENERIC_WORDS else CAMEL_CASE.sub(" ", letters).lower().split()
    return [word for word in words if len(word) > 1 or word in FUNCTION_WORDS or not word.isascii()]
