"""Captions read aloud by a speech program, so that pictures and words get a voice: rows of speech from rows of text."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import wave
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path

from triptych.data import manifest
from triptych.data.columns import FileKind
from triptych.data.manifest import Row
from triptych.data.sources.draft import Draft, Item, captions, share
from triptych.data.sources.output import Made, Origin, check_output, licence_of, write
from triptych.errors import UsageError, unknown
from triptych.files import PART, replacing
from triptych.progress import progress

LONGEST = 2000  # characters: minutes of speech
SECONDS = 120  # after so long a program hangs
HEADER = 44  # bytes of a WAV file before its first sample


@dataclass(frozen=True)
class Program:
    """A speech program: how to call it, which voices it has, and a few that differ well."""

    command: Callable[[str, str, str, Path], tuple[list[str], str]]  # program, voice, text, file -> arguments, input
    voices: Callable[[str], Callable[[str], bool]]  # program -> whether it has a voice
    usual: tuple[str, ...]


def _espeak(program: str, voice: str, text: str, file: Path) -> tuple[list[str], str]:
    return [program, "--stdin", "-b", "1", "-v", voice, "-w", str(file)], text


def _flite(program: str, voice: str, text: str, file: Path) -> tuple[list[str], str]:
    return [program, "-voice", voice, "-t", text, "-o", str(file)], ""


def _espeak_voices(program: str) -> Callable[[str], bool]:
    # Columns: priority, language, age/gender, name, file, others. An unknown variant would be ignored silently.
    lines = [line.split() for line in _output(program, "--voices").splitlines()[1:]]
    known = {word for parts in lines if len(parts) > 4 for word in (parts[1], parts[3], parts[4])}
    variants = set(re.findall(r"!v/(\S+)", _output(program, "--voices=variant")))

    def has(voice: str) -> bool:
        language, _, variant = voice.partition("+")
        return language in known and (not variant or variant in variants)

    return has


def _flite_voices(program: str) -> Callable[[str], bool]:
    known = set(_output(program, "-lv").partition(":")[2].split())  # an unknown voice would silently be another one
    return known.__contains__


PROGRAMS: dict[str, Program] = {
    "espeak-ng": Program(
        _espeak, _espeak_voices, ("en-us+m3", "en-gb+f2", "en-us+f4", "en-gb-scotland+m1", "en-us+m7", "en-gb-x-rp+f5")
    ),
    "flite": Program(_flite, _flite_voices, ("slt", "rms", "awb", "kal16")),
}


def speak(
    source: Path,
    output: Path,
    program: str | None = None,
    voices: Sequence[str] = (),
    workers: int = 2,
    each: int = 0,
    allow_outside: bool = False,
    show: bool = True,
) -> tuple[Made, Draft]:
    """A new manifest with a row for each caption: its speech, its words, and the picture and group of its row.

    A hash of row and caption chooses the voice; a hash of words, voice and group names the file: run again, whatever is
    there is kept, so an interrupted run goes on. Rows' own sounds stay behind, as a row has one. `each`: only so many
    captions of a row, from the first; 0 = all.
    """
    if workers < 1:
        raise UsageError(f"--workers {workers}: at least 1")
    if each < 0:
        raise UsageError(f"--each {each}: 0 for all captions of a row, or so many")
    output = check_output(output)
    table = manifest.read(source, allow_outside)
    if output.resolve() == table.path.resolve():
        raise UsageError(f"-o {output}: is the manifest to be read; choose another name for the new one")
    name, path, chosen = _find(program, voices)
    room = output.with_name(f"{output.stem}_speech").absolute()
    left_out: Counter[str] = Counter({"rows with an error": table.counts.unusable})
    planned = [item for row in table.rows for item in _readings(row, name, chosen, room, each, left_out)]
    tasks = {item.files["audio"]: (voice, item.texts[0]) for item, voice in planned}
    failures = _speak_all(PROGRAMS[name], path, tasks, room, workers, show)
    left_out["captions the program could not speak"] += sum(item.files["audio"] in failures for item, _ in planned)
    items = [item for item, _ in planned if item.files["audio"] not in failures]
    notes = [f"first failure: {next(iter(failures.values()))}"] if failures else []
    draft = Draft(items, left_out, notes)
    options = {"manifest": table.path.name, "program": name, "voices": list(chosen)} | ({"each": each} if each else {})
    return write(draft, output, Origin("speak", options, licence_of(table.path))), draft


def _find(program: str | None, voices: Sequence[str]) -> tuple[str, str, tuple[str, ...]]:
    """A speech program that is installed, where it lies, and the voices to use."""
    if program is not None and program not in PROGRAMS:
        raise UsageError(unknown("speech program", program, PROGRAMS))
    wanted = [program] if program else list(PROGRAMS)
    found = next(((name, path) for name in wanted if (path := shutil.which(name))), None)
    if found is None:
        raise UsageError(
            f"no speech program is installed (looked for {', '.join(wanted)}); "
            f"install one: apt-get install {wanted[0]}, or brew install {wanted[0]}"
        )
    name, path = found
    has = PROGRAMS[name].voices(path)
    strange = [voice for voice in voices if not has(voice)]
    if strange:
        raise UsageError(f"{name} has no voice {strange[0]!r}; its own list: `{name} {_listing(name)}`")
    chosen = tuple(voices) or tuple(voice for voice in PROGRAMS[name].usual if has(voice))
    if not chosen:
        raise UsageError(f"{name} has none of its usual voices; name some with --voices")
    return name, path, chosen


def _listing(name: str) -> str:
    return "-lv" if name == "flite" else "--voices"


def _readings(
    row: Row, program: str, voices: Sequence[str], room: Path, each: int, left_out: Counter[str]
) -> Iterable[tuple[Item, str]]:
    """One item for each caption of a row that can be spoken, with its voice."""
    if not row.texts:
        left_out["rows without captions"] += 1
        return
    if row.video and (row.start is not None or row.end is not None):
        left_out["rows about a moment of a film"] += 1  # start and end would cut the speech as well
        return
    kept: dict[FileKind, Path] = {}
    if row.image:
        kept["image"] = row.image
    if row.video:
        kept["video"] = row.video
    for number, text in enumerate(captions(*row.texts)[: each or None], start=1):
        if len(text) > LONGEST or not any(character.isalnum() for character in text):
            left_out["captions that are too long or have nothing to say"] += 1
            continue
        voice = voices[int(share("voice", row.id, text) * len(voices))]
        # The group as well: pictures with the same caption are no answers to each other, so they share no file.
        digest = hashlib.sha256("\0".join((program, voice, text, row.group)).encode()).hexdigest()[:24]
        item = Item(f"{row.id}:{number}", kept, (text,), row.group, row.split, row.label)
        yield replace(item, files={**kept, "audio": room / f"{digest}.wav"}), voice


def _speak_all(
    program: Program, path: str, tasks: dict[Path, tuple[str, str]], room: Path, workers: int, show: bool
) -> dict[Path, str]:
    """Speak what is not there yet; returns what could not be spoken, and why."""
    for leftover in room.glob(f".*{PART}"):
        leftover.unlink(missing_ok=True)  # of a run that was killed
    waiting = {file: task for file, task in tasks.items() if not (file.is_file() and file.stat().st_size > HEADER)}
    failures: dict[Path, str] = {}
    pool = ThreadPoolExecutor(workers)
    try:
        with progress("speaking", len(tasks), show) as bar:
            bar.advance(len(tasks) - len(waiting))
            futures = {pool.submit(_speak, program, path, voice, text, f): f for f, (voice, text) in waiting.items()}
            for future in as_completed(futures):
                reason = future.result()
                if reason:
                    failures[futures[future]] = reason
                bar.advance(note=f"{len(failures)} failed" if failures else None)
    finally:
        pool.shutdown(cancel_futures=True)
    return {file: failures[file] for file in waiting if file in failures}


def _speak(program: Program, path: str, voice: str, text: str, file: Path) -> str | None:
    """Speak one caption into a file; None, or why it could not be done."""
    try:
        with replacing(file, durable=False) as temporary:
            _run(*program.command(path, voice, text, temporary))
            _check_sound(temporary)
    except (OSError, EOFError, ValueError, wave.Error, subprocess.TimeoutExpired) as error:
        return f"{text!r} with voice {voice}: {error}"
    return None


def _run(arguments: list[str], words: str) -> None:
    """Run a program on words that no shell sees."""
    done = subprocess.run(  # noqa: S603 - a list of arguments, a program found by name
        arguments, input=words.encode(), capture_output=True, timeout=SECONDS, check=False
    )
    if done.returncode:
        raise ValueError(done.stderr.decode("utf-8", "replace").strip() or f"exit code {done.returncode}")


def _check_sound(file: Path) -> None:
    with wave.open(str(file), "rb") as sound:
        if sound.getnframes() == 0:
            raise ValueError("no sound came out")


def _output(program: str, argument: str) -> str:
    done = subprocess.run(  # noqa: S603 - our own argument, a program found by name
        [program, argument], capture_output=True, timeout=SECONDS, check=False, stdin=subprocess.DEVNULL
    )
    return done.stdout.decode("utf-8", "replace")
