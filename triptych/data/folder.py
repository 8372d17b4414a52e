"""Where the files of a manifest lie, and the rule that they lie inside its folder."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from triptych.data.problems import UnfitError, shown


class Folder:
    """Finds the files a manifest names.

    A manifest that somebody shares must not make us read other files of this machine, so a path that leaves the folder
    (absolute, through `..` or through a symlink) is refused unless `allow_outside` is set.
    """

    def __init__(self, root: Path, media: Path, allow_outside: bool = False) -> None:
        self.root = root.resolve()
        self.media = str(media.absolute())  # relative paths start here
        self.allow_outside = allow_outside
        # Resolving costs a system call for each part of a path, and rows share few folders: do it once for each.
        self._inside: dict[str, bool] = {}

    def locate(self, name: str) -> Path:
        """The path of a file that exists, is not empty and may be read; UnfitError says why it cannot be used."""
        # Strings, not Path: pathlib would take most of the time of reading a long manifest.
        path = os.path.join(self.media, name)  # noqa: PTH118
        if not self._holds(os.path.split(path)[0]):
            raise self._outside(name)
        try:
            status = os.lstat(path)
            if stat.S_ISLNK(status.st_mode):
                if not self._is_inside(path):
                    raise self._outside(name)
                status = os.stat(path)  # noqa: PTH116
        except (FileNotFoundError, NotADirectoryError):
            hint = " (write / between folders, not \\)" if "\\" in name else ""
            raise UnfitError("missing file", f"no such file: {shown(name)}{hint}") from None
        except OSError as error:
            raise UnfitError("unreadable file", f"cannot be read ({error.strerror}): {shown(name)}") from None
        if not stat.S_ISREG(status.st_mode):
            raise UnfitError("not a file", f"is not a file: {shown(name)}")
        if status.st_size == 0:
            raise UnfitError("empty file", f"the file has no bytes: {shown(name)}")
        return Path(path)

    def _holds(self, folder: str) -> bool:
        inside = self._inside.get(folder)
        if inside is None:
            inside = self._inside[folder] = self._is_inside(folder)
        return inside

    def _is_inside(self, path: str) -> bool:
        return self.allow_outside or Path(os.path.realpath(path)).is_relative_to(self.root)

    @staticmethod
    def _outside(name: str) -> UnfitError:
        return UnfitError(
            "outside path", f"leaves the manifest's folder: {shown(name)}; if that is meant, allow it (--allow-outside)"
        )
