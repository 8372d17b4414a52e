"""Synthesise speech from the captions of a manifest with espeak-ng or flite: one row with audio for each caption."""

import hashlib
import re
import shutil
import subprocess
import wave
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from triptych.data import manifest
from triptych.data.datasets.derived import resolve_derived_path, write_derived_manifest
from triptych.data.datasets.draft import DraftItem, ManifestDraft, clean_captions
from triptych.data.datasets.manifest_writer import WrittenManifest
from triptych.data.datasets.splits import hash_to_fraction
from triptych.data.manifest import Row, files_of
from triptych.data.row_parser import MediaType
from triptych.errors import UsageError, describe_unknown
from triptych.files import TEMP_SUFFIX, atomic_write
from triptych.progress import track_progress

MAX_CHARACTERS = 2000  # maximum length of a caption; about two minutes of speech
TIMEOUT_SECONDS = 120  # maximum time to synthesise one caption
WAV_HEADER_BYTES = 44


@dataclass(frozen=True)
class SpeechProgram:
    """A speech program: its command line, a test whether a voice exists, and default voices that differ clearly."""

    build_command: Callable[[str, str, str, Path], tuple[list[str], str]]  # program, voice, text, file -> argv, stdin
    make_voice_check: Callable[[str], Callable[[str], bool]]  # program -> (voice -> whether the voice exists)
    default_voices: tuple[str, ...]


def _espeak_command(program: str, voice: str, text: str, file: Path) -> tuple[list[str], str]:
    return [program, "--stdin", "-b", "1", "-v", voice, "-w", str(file)], text


def _flite_command(program: str, voice: str, text: str, file: Path) -> tuple[list[str], str]:
    return [program, "-voice", voice, "-t", text, "-o", str(file)], ""


def _espeak_voice_check(program: str) -> Callable[[str], bool]:
    # Columns of the list: priority, language, age/gender, name, file, other languages. espeak-ng ignores unknown
    # variants without an error.
    lines = [line.split() for line in _capture_stdout(program, "--voices").splitlines()[1:]]
    languages = {word for parts in lines if len(parts) > 4 for word in (parts[1], parts[3], parts[4])}
    variants = set(re.findall(r"!v/(\S+)", _capture_stdout(program, "--voices=variant")))

    def has_voice(voice: str) -> bool:
        language, _, variant = voice.partition("+")
        return language in languages and (not variant or variant in variants)

    return has_voice


def _flite_voice_check(program: str) -> Callable[[str], bool]:
    # flite replaces an unknown voice without an error.
    voices = set(_capture_stdout(program, "-lv").partition(":")[2].split())
    return voices.__contains__


PROGRAMS: dict[str, SpeechProgram] = {
    "espeak-ng": SpeechProgram(
        _espeak_command,
        _espeak_voice_check,
        ("en-us+m3", "en-gb+f2", "en-us+f4", "en-gb-scotland+m1", "en-us+m7", "en-gb-x-rp+f5"),
    ),
    "flite": SpeechProgram(_flite_command, _flite_voice_check, ("slt", "rms", "awb", "kal16")),
}


def synthesise_speech(
    manifest_path: Path,
    output: Path,
    program: str | None = None,
    voices: Sequence[str] = (),
    workers: int = 2,
    captions_per_row: int = 0,
    allow_outside: bool = False,
    show_progress: bool = True,
) -> tuple[WrittenManifest, ManifestDraft]:
    """Write a manifest with one row for each caption: the caption, its speech, and the original row's image and group.

    The audio of the original rows is dropped. A hash of row and caption selects the voice. A hash of caption, voice and
    group is the name of the audio file. Existing audio files are reused, so an interrupted call can be repeated.
    Only the first `captions_per_row` captions of each row are used; 0 means all captions.
    """
    if workers < 1:
        raise UsageError(f"--workers {workers}: must be at least 1")
    if captions_per_row < 0:
        raise UsageError(f"--captions-per-row {captions_per_row}: must be positive, or 0 for all captions of a row")
    table = manifest.read(manifest_path, allow_outside)
    output = resolve_derived_path(output, table)
    name, path, chosen_voices = _find_program(program, voices)
    speech_folder = output.with_name(f"{output.stem}_speech").absolute()
    skip_counts: Counter[str] = Counter()
    utterances = [
        item
        for row in table.rows
        for item in _plan_utterances(row, name, chosen_voices, speech_folder, captions_per_row, skip_counts)
    ]
    tasks = {item.files["audio"]: (voice, item.texts[0]) for item, voice in utterances}
    failures = _synthesise_all(PROGRAMS[name], path, tasks, speech_folder, workers, show_progress)
    items = [item for item, _ in utterances if item.files["audio"] not in failures]
    skip_counts["captions that the program could not synthesise"] += len(utterances) - len(items)
    notes = [f"first failure: {next(iter(failures.values()))}"] if failures else []
    options = {"program": name, "voices": list(chosen_voices)}
    options |= {"captions_per_row": captions_per_row} if captions_per_row else {}
    return write_derived_manifest(table, items, output, "add-speech", options, skip_counts, notes)


def _find_program(program: str | None, voices: Sequence[str]) -> tuple[str, str, tuple[str, ...]]:
    """Return the name and the path of an installed speech program, and the voices to use."""
    if program is not None and program not in PROGRAMS:
        raise UsageError(describe_unknown("speech program", program, PROGRAMS))
    candidates = [program] if program else list(PROGRAMS)
    installed = next(((name, path) for name in candidates if (path := shutil.which(name))), None)
    if installed is None:
        raise UsageError(
            f"no speech program is installed (looked for {', '.join(candidates)}); "
            f"install one: apt-get install {candidates[0]}, or brew install {candidates[0]}"
        )
    name, path = installed
    has_voice = PROGRAMS[name].make_voice_check(path)
    unknown_voices = [voice for voice in voices if not has_voice(voice)]
    if unknown_voices:
        option = "-lv" if name == "flite" else "--voices"
        raise UsageError(f"{name} has no voice {unknown_voices[0]!r}; list its voices with `{name} {option}`")
    chosen_voices = tuple(voices) or tuple(voice for voice in PROGRAMS[name].default_voices if has_voice(voice))
    if not chosen_voices:
        raise UsageError(f"none of the default voices for {name} is installed; choose installed voices with --voices")
    return name, path, chosen_voices


def _plan_utterances(
    row: Row, program: str, voices: Sequence[str], speech_folder: Path, captions_per_row: int, skip_counts: Counter[str]
) -> Iterable[tuple[DraftItem, str]]:
    """Yield a draft item and a voice for each caption of a row."""
    if not row.texts:
        skip_counts["rows without captions"] += 1
        return
    if row.video and (row.start is not None or row.end is not None):
        skip_counts["rows with a segment of a video"] += 1  # its start and end would also apply to the speech
        return
    files = files_of(row)
    for number, text in enumerate(clean_captions(*row.texts)[: captions_per_row or None], start=1):
        if len(text) > MAX_CHARACTERS or not any(character.isalnum() for character in text):
            skip_counts["captions that are too long or have no letters or digits"] += 1
            continue
        voice = voices[int(hash_to_fraction("voice", row.id, text) * len(voices))]
        # The hash includes the group: rows of different groups do not match, even if their captions are equal, so
        # they must not share an audio file.
        digest = hashlib.sha256("\0".join((program, voice, text, row.group)).encode()).hexdigest()[:24]
        item_files: dict[MediaType, Path] = {**files, "audio": speech_folder / f"{digest}.wav"}
        yield DraftItem(f"{row.id}:{number}", item_files, (text,), row.group, row.split, row.label), voice


def _synthesise_all(
    program: SpeechProgram,
    path: str,
    tasks: dict[Path, tuple[str, str]],
    speech_folder: Path,
    workers: int,
    show_progress: bool,
) -> dict[Path, str]:
    """Synthesise the audio files that do not exist. Return each file that failed with the reason."""
    for stale_file in speech_folder.glob(f".*{TEMP_SUFFIX}"):
        stale_file.unlink(missing_ok=True)  # left by a killed process
    pending = {
        file: task for file, task in tasks.items() if not (file.is_file() and file.stat().st_size > WAV_HEADER_BYTES)
    }
    failures: dict[Path, str] = {}
    pool = ThreadPoolExecutor(workers)
    try:
        with track_progress("synthesising speech", len(tasks), show_progress) as bar:
            bar.advance(len(tasks) - len(pending))
            futures = {pool.submit(_synthesise, program, path, *task, file): file for file, task in pending.items()}
            for future in as_completed(futures):
                if reason := future.result():
                    failures[futures[future]] = reason
                bar.advance(note=f"{len(failures)} failed" if failures else None)
    finally:
        pool.shutdown(cancel_futures=True)
    return {file: failures[file] for file in pending if file in failures}


def _synthesise(program: SpeechProgram, path: str, voice: str, text: str, file: Path) -> str | None:
    """Synthesise one caption. Return None, or the reason why the program failed."""
    try:
        with atomic_write(file, durable=False) as temporary:
            _run_program(*program.build_command(path, voice, text, temporary))
            with wave.open(str(temporary), "rb") as wav:
                if wav.getnframes() == 0:
                    raise ValueError("the program wrote no audio samples")  # noqa: TRY301 - a failure like the others
    except (OSError, EOFError, ValueError, wave.Error, subprocess.TimeoutExpired) as error:
        return f"{text!r} with voice {voice}: {error}"
    return None


def _run_program(arguments: list[str], stdin_text: str) -> None:
    """Run a program without a shell. Raise ValueError if the program fails."""
    result = subprocess.run(  # noqa: S603 - arguments as a list, program from PATH
        arguments, input=stdin_text.encode(), capture_output=True, timeout=TIMEOUT_SECONDS, check=False
    )
    if result.returncode:
        raise ValueError(result.stderr.decode("utf-8", "replace").strip() or f"exit code {result.returncode}")


def _capture_stdout(program: str, argument: str) -> str:
    result = subprocess.run(  # noqa: S603 - constant argument, program from PATH
        [program, argument], capture_output=True, timeout=TIMEOUT_SECONDS, check=False, stdin=subprocess.DEVNULL
    )
    return result.stdout.decode("utf-8", "replace")
