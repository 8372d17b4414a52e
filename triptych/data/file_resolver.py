"""Where the files of a manifest lie, and the rule that they lie inside its folder."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from triptych.data.manifest_problems import InvalidCellError, to_printable


class FileResolver:
    """Finds the files a manifest names.

    A manifest that somebody shares must not make us read other files of this machine, so a path that leaves the folder
    (absolute, through `..` or through a symlink) is refused unless `allow_outside` is set.
    """

    def __init__(self, root: Path, media_root: Path, allow_outside: bool = False) -> None:
        self.root = root.resolve()
        self.media_root = str(media_root.absolute())  # relative paths start here
        self.allow_outside = allow_outside
        # Resolving costs a system call for each part of a path, and rows share few folders: do it once for each.
        self._folder_is_inside: dict[str, bool] = {}

    def resolve(self, name: str) -> Path:
        """The path of a file that exists, is not empty and may be read; UnfitError says why it cannot be used."""
        # Strings, not Path: pathlib would take most of the time of reading a long manifest.
        path = os.path.join(self.media_root, name)  # noqa: PTH118
        if not self._is_allowed_folder(os.path.split(path)[0]):
            raise self._outside_error(name)
        try:
            status = os.lstat(path)
            if stat.S_ISLNK(status.st_mode):
                if not self._is_inside(path):
                    raise self._outside_error(name)
                status = os.stat(path)  # noqa: PTH116
        except (FileNotFoundError, NotADirectoryError):
            hint = " (write / between folders, not \\)" if "\\" in name else ""
            raise InvalidCellError("missing file", f"no such file: {to_printable(name)}{hint}") from None
        except OSError as error:
            raise InvalidCellError(
                "unreadable file", f"cannot be read ({error.strerror}): {to_printable(name)}"
            ) from None
        if not stat.S_ISREG(status.st_mode):
            raise InvalidCellError("not a file", f"is not a file: {to_printable(name)}")
        if status.st_size == 0:
            raise InvalidCellError("empty file", f"the file has no bytes: {to_printable(name)}")
        return Path(path)

    def _is_allowed_folder(self, folder: str) -> bool:
        is_inside = self._folder_is_inside.get(folder)
        if is_inside is None:
            is_inside = self._folder_is_inside[folder] = self._is_inside(folder)
        return is_inside

    def _is_inside(self, path: str) -> bool:
        return self.allow_outside or Path(os.path.realpath(path)).is_relative_to(self.root)

    @staticmethod
    def _outside_error(name: str) -> InvalidCellError:
        return InvalidCellError(
            "outside path",
            f"leaves the manifest's folder: {to_printable(name)}; if that is meant, allow it (--allow-outside)",
        )
