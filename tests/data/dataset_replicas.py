"""Small replicas of datasets in their published layouts, one for each source."""

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import pyarrow
from PIL import Image
from pyarrow import ipc, parquet

WAV = b"RIFF\x24\0\0\0WAVEfmt \x10\0\0\0\x01\0\x01\0@\x1f\0\0\x80>\0\0\x02\0\x10\0data\x02\0\0\0\0\0"


def png_bytes(shade: int = 0) -> bytes:
    """Return a PNG of one grey pixel."""
    file = io.BytesIO()
    Image.new("L", (1, 1), shade).save(file, "PNG")
    return file.getvalue()


def write_file(path: Path, content: bytes | str = b"content") -> Path:
    """Write a file and create its folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def write_csv(path: Path, header: str, *rows: str) -> Path:
    """Write a CSV file of these lines."""
    return write_file(path, "\n".join([header, *rows]) + "\n")


def esc50(root: Path) -> None:
    names = ["dog", "rain", "hen", "crow", "sea_waves"]
    rows = [
        f"{fold}-{fold}{target}-A-{target}.wav,{fold},{target},{name}"
        for fold in range(1, 6)
        for target, name in enumerate(names)
    ]
    write_csv(root / "meta/esc50.csv", "filename,fold,target,category", *rows)
    lines = [
        f"- [{fold}-{fold}{target}-A.ogg]: clip derived from My_{name} (live).wav (http://x.org/{fold}/) by me [CC0]"
        for fold in range(1, 6)
        for target, name in enumerate(names)
    ]
    write_file(root / "LICENSE", "\n".join(lines))
    for row in rows:
        write_file(root / "audio" / row.split(",")[0], WAV)


def clotho(root: Path) -> None:
    for part in ("development", "validation", "evaluation"):
        captions = ",".join(f"caption_{number}" for number in range(1, 6))
        write_csv(
            root / f"clotho_captions_{part}.csv", f"file_name,{captions}", f"{part}.wav,a,b,c,d,a", "gone.wav,a,b,c,d,e"
        )
        write_file(root / part / f"{part}.wav", WAV)


def audiocaps(root: Path) -> None:
    header = "audiocap_id,youtube_id,start_time,caption"
    write_csv(root / "train.csv", header, "1,-aaaaaaaaaa,30,a dog barks", "2,bbbbbbbbbbb,0,gone")
    write_csv(root / "val.csv", header, *(f"{n},ccccccccccc,5,caption {n}" for n in range(5)))
    write_csv(root / "test.csv", header, *(f"{n},ddddddddddd,5,said {n}" for n in range(5)), "9,ddddddddddd,60,later")
    for name in (
        "train/-aaaaaaaaaa.wav",
        "val/Yccccccccccc.flac",
        "test/ddddddddddd_5_15.wav",
        "test/ddddddddddd_60.wav",
    ):
        write_file(root / "audio" / name, WAV)


def wavcaps(root: Path) -> None:
    entries = {
        "FreeSound": ("fsd", ["7", "8"]),
        "SoundBible": ("sb", ["7"]),
        "AudioSet_SL": ("as", ["Yx.wav", "Yz.wav"]),
    }
    for site, (short, names) in entries.items():
        data = [{"id": name, "caption": f"{site} {name}", "duration": 1} for name in names]
        write_file(
            root / f"json_files/{site}/{short}_final.json", json.dumps({"num_captions_per_audio": 1, "data": data})
        )
        for name in names:
            write_file(root / f"{site}_flac" / f"{name.removesuffix('.wav')}.flac", WAV)
    write_file(
        root / "json_files/blacklist/blacklist_exclude_test_ac.json",
        json.dumps({"AudioSet": ["Yz.wav"], "FreeSound": ["8"]}),
    )


def flickr8k(root: Path) -> None:
    text = root / "Flickr8k_text"
    names = {"train": ["1_a.jpg", "2_b.jpg"], "dev": ["3_c.jpg"], "test": ["4_d.jpg"]}
    all_names = [*(name for part in names.values() for name in part), "5_e.jpg"]
    write_file(
        text / "Flickr8k.token.txt",
        "\n".join(f"{name}#{n}\tA dog runs {n % 4} ." for name in all_names for n in range(5)),
    )
    for part, part_names in names.items():
        write_file(text / f"Flickr_8k.{part}Images.txt", "\n".join(part_names))
    for number, name in enumerate(all_names):
        write_file(root / "Flicker8k_Dataset" / name, png_bytes(number))


def flickr_audio(root: Path) -> None:
    flickr8k(root)
    lines = [f"{name}_{n}.wav {name}.jpg #{n}" for name in ("1_a", "3_c", "4_d", "5_e") for n in range(5)]
    write_file(root / "flickr_audio/wav2capt.txt", "\n".join(lines))
    for line in lines:
        write_file(root / "flickr_audio/wavs" / line.split()[0], WAV)


def coco(root: Path) -> None:
    for number, part in enumerate(("train2017", "val2017")):
        images = [{"id": 10 * number + n, "file_name": f"{10 * number + n:012d}.jpg"} for n in range(2)]
        notes = [{"image_id": image["id"], "id": n, "caption": f"caption {n}"} for image in images for n in range(5)]
        write_file(root / f"annotations/captions_{part}.json", json.dumps({"images": images, "annotations": notes}))
        for image in images:
            write_file(root / "images" / part / image["file_name"], png_bytes(number))


def karpathy(root: Path) -> None:
    """Write COCO with Karpathy's splits."""
    images = []
    for number, split in enumerate(("train", "restval", "val", "test")):
        name = f"COCO_val2014_{number}.jpg"
        write_file(root / "images/val2014" / name, png_bytes(number))
        sentences = [{"raw": f"caption {number}"}]
        images.append(
            {"cocoid": number, "filepath": "val2014", "filename": name, "split": split, "sentences": sentences}
        )
    write_file(root / "dataset_coco.json", json.dumps({"images": images}))


def places_audio(root: Path) -> None:
    for part in ("train", "val"):
        data = [
            {
                "uttid": f"{part}{n}",
                "wav": f"wavs/{part}{n}.wav",
                "image": f"a/abbey/{part}.jpg",
                "asr_text": f"said {n}",
            }
            for n in range(2)
        ]
        write_file(
            root / f"metadata/{part}.json",
            json.dumps({"image_base_path": "/elsewhere", "audio_base_path": "/elsewhere", "data": data}),
        )
        for entry in data:
            write_file(root / "audio" / entry["wav"], WAV)
        write_file(root / "images" / f"a/abbey/{part}.jpg", png_bytes())


def tuxpaint(root: Path) -> None:
    stamps = root / "usr/share/tuxpaint/stamps"
    write_file(stamps / "animals/dog.txt", "A dog.\nfr.utf8=Un chien.\nes.utf8=Un perro.\n")
    write_file(stamps / "animals/dog2.txt", "A dog.\nfr.utf8=Un autre chien.\n")
    write_file(stamps / "plants/oak.txt", "An oak.\nfr.utf8=Un chêne.\n")
    write_file(stamps / "plants/fir.txt", "A fir.\nfr.utf8=Un sapin.\n")
    for name in ("animals/dog", "animals/dog2", "plants/oak"):
        write_file(stamps / f"{name}.png", png_bytes())
    write_file(stamps / "plants/fir.svg", "<svg/>")
    for name in ("animals/dog.wav", "animals/dog_desc.ogg", "animals/dog_desc_fr.ogg", "plants/fir_desc.ogg"):
        write_file(stamps / name, WAV)


def gcompris(root: Path) -> None:
    rows = [
        "orange_fruit,orange_fruit.jpg,nature,fruit,orange,une orange,o1.ogg,o2.ogg",
        "orange_color,orange_color.jpg,other,color,Orange,orange,o3.ogg,",
        "coin,coin.jpg,object,object,coin,une pièce,c1.ogg,c2.ogg",
        "room,room.jpg,object,object,room,une pièce,,r2.ogg",
        "sea,sea.jpg,,,sea,,s1.ogg,",
    ]
    write_csv(root / "meta.csv", "id,image,chapter,lesson,text_en,text_fr,speech_en_US,speech_fr", *rows)
    for row in rows:
        cells = row.split(",")
        write_file(root / "images" / cells[1], png_bytes())
        for name in filter(None, cells[6:]):
            write_file(root / "audio" / name, WAV)


def folder(root: Path) -> None:
    write_file(root / "train/audio/dog.wav", WAV)
    write_file(root / "train/images/dog.png", png_bytes())
    write_file(root / "train/captions/dog.txt", "a dog\nit barks\n\n")
    write_file(root / "test/heavy_rain/1.wav", WAV)
    write_file(root / "test/heavy_rain/2.wav", WAV + b"\0")
    write_file(root / "test/heavy_rain/.hidden.wav", WAV)


def write_tar(path: Path, members: dict[str, bytes]) -> Path:
    """Write a tar file of these members."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def write_deb(path: Path, name: str, content: bytes) -> Path:
    """Write a Debian package with the archive of its files."""
    parts = [("debian-binary", b"2.0\n"), ("control.tar.xz", b"odd"), (name, content)]
    header = "{:<16}{:<12}{:<6}{:<6}{:<8}{:<10}`\n"
    with path.open("wb") as file:
        file.write(b"!<arch>\n")
        for entry, data in parts:
            file.write(header.format(entry, 0, 0, 0, "100644", len(data)).encode() + data + b"\n" * (len(data) % 2))
    return path


def webdataset(root: Path) -> None:
    captions = json.dumps({"text": ["a dog", "it barks"], "tag": ["x"]}).encode()
    write_tar(
        root / "train-000000.tar",
        {"0001.flac": WAV, "0001.json": captions, "0002.wav": WAV, "0002.txt": b"rain", "0002.cls": b"7"},
    )
    write_tar(
        root / "sub/test-000000.tar", {"./a/0001.jpg": png_bytes(), "./a/0001.txt": b"a cat", "readme.pdf": b"no"}
    )


def hf(root: Path) -> None:
    features = {"image": {"_type": "Image"}, "label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    cell = pyarrow.struct({"bytes": pyarrow.binary(), "path": pyarrow.string()})
    schema = pyarrow.schema(
        {"image": cell, "captions": pyarrow.list_(pyarrow.string()), "label": pyarrow.int64()}, metadata
    )
    for split, shades in {"train": (1, 1, 2), "test": (3, 4, 5)}.items():
        images = [{"bytes": png_bytes(shade), "path": None} for shade in shades]
        content = {"image": images, "captions": [[f"{split} {n}", "again"] for n in range(3)], "label": [0, 1, 1]}
        path = root / split / "data-00000-of-00001.arrow"
        path.parent.mkdir(parents=True)
        with pyarrow.OSFile(str(path), "wb") as sink, ipc.new_stream(sink, schema) as writer:
            writer.write_table(pyarrow.table(content, schema=schema))
        write_file(root / split / "dataset_info.json", json.dumps({"features": features}))
    write_file(root / "dataset_dict.json", json.dumps({"splits": ["train", "test"]}))


def hf_parquet(root: Path) -> None:
    """Write the layout of the Hugging Face hub: Parquet files with embedded audio, and an unusual caption column."""
    cells = [{"bytes": WAV + bytes([n]), "path": f"{n}.wav"} for n in range(2)]
    content = {"audio": cells, "said": ["one", "two"], "speaker": [3, 4]}
    for split in ("train", "validation"):
        path = root / f"data/{split}-00000-of-00001.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        parquet.write_table(pyarrow.table(content), path)


REPLICAS: dict[str, Callable[[Path], None]] = {
    "esc50": esc50,
    "clotho": clotho,
    "audiocaps": audiocaps,
    "wavcaps": wavcaps,
    "flickr8k": flickr8k,
    "coco": coco,
    "places_audio": places_audio,
    "flickr_audio": flickr_audio,
    "tuxpaint": tuxpaint,
    "gcompris": gcompris,
    "folder": folder,
    "webdataset": webdataset,
    "hf": hf,
}
