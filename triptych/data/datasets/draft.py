"""Drafts of manifests: the rows that are read from a dataset, before they are checked and written."""

import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from triptych.data.datasets.local_copy import LocalCopy
from triptych.data.row_parser import MediaType
from triptych.errors import UsageError, describe_unknown
from triptych.media.text import normalise
from triptych.settings import parse_value, read_value


@dataclass(frozen=True)
class DraftItem:
    """A row of a manifest that is not written yet."""

    id: str
    files: Mapping[MediaType, Path] = field(default_factory=dict)
    texts: tuple[str, ...] = ()
    group: str | None = None
    split: str | None = None
    label: str | None = None
    start: float | None = None  # start and end of the segment of the audio or video, in seconds
    end: float | None = None

    @property
    def has_pair(self) -> bool:
        """Whether the row has two or more modalities. A video counts as two: image and audio."""
        return len(self.files) + bool(self.texts) + ("video" in self.files) > 1


@dataclass(frozen=True)
class ManifestDraft:
    """The rows of a dataset. `skip_counts` counts skipped items by reason. `notes` are printed for the user.

    If `split_units` is not None and no item has a split, usable rows are split by hash. Rows of one unit stay in one
    split. `split_units` maps row ids to units. The default unit is the group or, for rows without a group, the row.
    """

    items: list[DraftItem] = field(default_factory=list)
    skip_counts: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    split_units: Mapping[str, str] | None = None


@dataclass(frozen=True)
class Dataset:
    """A dataset or format that can be converted to a manifest: an entry of DATASETS."""

    title: str
    modalities: str
    expected_files: tuple[str, ...]  # lines that describe the layout of a local copy
    licence: str
    read: Callable[..., ManifestDraft]  # (copy, *, options …)
    installed_path: Path | None = None  # where a system package installs the dataset
    is_user_folder: bool = False  # whether the folder has the user's own files; by default nothing is written into it

    @property
    def option_names(self) -> tuple[str, ...]:
        """The keyword-only parameters of `read`."""
        return tuple(inspect.getfullargspec(self.read).kwonlyargs)

    def parse_options(self, options: Iterable[str]) -> dict[str, Any]:
        """Parse options such as "fold=2" by the types of the parameters of `read`."""
        parameters, values = inspect.signature(self.read, eval_str=True).parameters, {}
        for option in options:
            name, _, text = option.partition("=")
            annotation = parameters[name].annotation if name in parameters else inspect.Parameter.empty
            if annotation is inspect.Parameter.empty:
                values[name] = text  # `build_draft` raises an error if the dataset has no such option
            else:
                location = f"--option {name}"
                values[name] = read_value(parse_value(text, location), annotation, location)
        return values

    def build_draft(self, copy: LocalCopy, options: Mapping[str, Any]) -> ManifestDraft:
        """Read a copy. Raise UsageError for an unknown option."""
        for name in options:
            if name not in self.option_names:
                available = ", ".join(f"--{option}" for option in self.option_names) or "none"
                raise UsageError(f"dataset {copy.dataset_name!r} has no option --{name}; its options: {available}")
        return self.read(copy, **options)


def clean_captions(*texts: str | None) -> tuple[str, ...]:
    """Normalise texts. Drop empty and repeated texts."""
    return tuple(dict.fromkeys(filter(None, (normalise(text) for text in texts if text))))


def check_choice(option: str, value: Any, allowed: Iterable[Any]) -> None:
    """Raise UsageError unless the value of an option is one of the allowed values."""
    if value not in allowed:
        raise UsageError(describe_unknown(f"--{option}", str(value), map(str, allowed)))
