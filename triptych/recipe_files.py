"""The files of recipes: the bundled recipes by name, and files of the user."""

from pathlib import Path

from triptych.errors import RecipeError, describe_unknown


def list_bundled_recipes() -> dict[str, Path]:
    """Return a dict from name to path of the bundled recipes."""
    package_folder = Path(__file__).parent
    folder = next((f for f in (package_folder / "recipes", package_folder.parent / "recipes") if f.is_dir()), None)
    return {path.stem: path for path in sorted(folder.glob("*.toml"))} if folder else {}


def find_recipe_file(name_or_path: str | Path) -> Path:
    """Return the path of a bundled recipe or of a TOML file. Raise RecipeError if there is neither."""
    bundled = list_bundled_recipes()
    if str(name_or_path) in bundled:
        return bundled[str(name_or_path)]
    path = Path(name_or_path)
    if path.suffix.lower() in {".csv", ".jsonl", ".parquet"}:
        raise RecipeError(f"{path} is a manifest, not a recipe; run: triptych train RECIPE --data {path}")
    if path.suffix == ".toml" or path.exists():
        if not path.is_file():
            raise RecipeError(f"recipe {path}: no such file; bundled recipes: {', '.join(bundled)}")
        return path
    raise RecipeError(describe_unknown("recipe", str(name_or_path), bundled))
