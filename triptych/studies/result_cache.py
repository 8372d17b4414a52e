"""The cache of a study's results: an interrupted study resumes, and only fits with changed recipes are repeated."""

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from triptych.errors import UsageError
from triptych.files import write_text
from triptych.progress import ProgressBar
from triptych.recipe import Recipe

Values = dict[str, Any]
# Increase this number when a change of the code changes the results of the same recipe.
FORMAT_VERSION = 1


class ResultCache:
    """The results of a study's fits by key and recipe, stored as JSON lines."""

    def __init__(self, path: Path, metadata: Mapping[str, Any], progress: ProgressBar | None = None) -> None:
        self.path, self.progress = path, progress
        self._header = json.dumps({"format_version": FORMAT_VERSION, **metadata}, sort_keys=True)
        self._results: dict[str, Values] = {}
        if path.exists():
            header, *lines = path.read_text(encoding="utf-8").splitlines() or [""]
            if header != self._header:
                problem = f"{path}: contains results of other data or settings, or of another version of triptych"
                raise UsageError(f"{problem}; give another folder, or --restart")
            for line in lines:
                try:
                    record = json.loads(line)
                except ValueError:
                    continue  # the process was killed while it wrote this line
                self._results[record["key"]] = record["values"]
            lines = [json.dumps({"key": cache_key, "values": values}) for cache_key, values in self._results.items()]
            write_text(path, "\n".join([self._header, *lines]) + "\n")

    def load_or_compute(self, compute: Callable[[Recipe], Values], recipe: Recipe, **key: Any) -> Values:
        """Load the result of a fit from the cache, or compute the result from the recipe and store it."""
        recipe_hash = hashlib.sha256(recipe.to_toml().encode()).hexdigest()[:16]
        cache_key = json.dumps(key | {"recipe": recipe_hash}, sort_keys=True)
        if cache_key not in self._results:
            # Convert to JSON and back, so that a resumed study has the same numbers as an uninterrupted study.
            self._results[cache_key] = json.loads(json.dumps(compute(recipe)))
            if not self.path.exists():  # created only here, so that a study that rejects its data leaves no file
                self.path.parent.mkdir(parents=True, exist_ok=True)
                write_text(self.path, self._header + "\n")
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"key": cache_key, "values": self._results[cache_key]}) + "\n")
        if self.progress:
            self.progress.advance(1, ", ".join(f"{value}" for value in key.values()))
        return self._results[cache_key]
