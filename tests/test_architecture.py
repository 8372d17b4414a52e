"""The house rules, read off the source: who imports whom, sizes, names, and that the README tells the truth."""

import ast
import re
import runpy
import tomllib
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "triptych"

STRANGERS = {"data", "encoders", "similarities", "objectives"}  # never import each other
LONGEST_FILE, LONGEST_FUNCTION = 400, 60
BANNED_FILES = {"utils", "util", "helpers", "helper", "common", "misc", "base"}
BANNED_NAME = re.compile(r"(Manager|Factory|Base|Helper|Utils?)$|^(get_|_get_)")
PAPERS = re.compile(r"clap|damsm|attngan|davenet|shre|mltm|siglip|wang|isola", re.IGNORECASE)

FILES = sorted(PACKAGE.rglob("*.py"))
EVERY_FILE = FILES + sorted((ROOT / "tests").rglob("*.py")) + sorted((ROOT / "bench").rglob("*.py"))


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def parsed(path: Path) -> ast.Module:
    """The syntax tree of a file; most tests look at every file."""
    return ast.parse(path.read_text())


@cache
def order() -> dict[str, int]:
    """The place of every module in the README's tree; a folder's own module stands after its files."""
    places: dict[str, int] = {}
    for number, path in enumerate(readme_tree()):
        if path.startswith("triptych/") and path.endswith(".py"):
            parts = Path(path).with_suffix("").parts
            places[".".join(parts)] = number
            for depth in range(2, len(parts)):
                places[".".join(parts[:depth])] = number
    return places


def imported(tree: ast.Module) -> set[str]:
    """Every triptych module a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {module for module in found if module.split(".")[0] == "triptych"}


def broken_rules(module: str, modules: set[str]) -> list[str]:
    """The imports of a module that do not stand above it in the tree, or that cross between strangers."""
    places = order()
    own, room = places[module], module.split(".")[1]
    bad = []
    for other in modules:
        if other == "triptych.__version__":
            continue
        known = next((m for m in (other, other.rpartition(".")[0]) if m in places), None)
        crosses = {room, other.split(".")[1]} <= STRANGERS and room != other.split(".")[1]
        if known is None or places[known] > own or crosses:
            bad.append(other)
    return bad


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_files_import_only_what_stands_above_them(path):
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    if module in {"triptych", "triptych.__main__"}:
        return  # the front doors open on everything
    assert broken_rules(module, imported(parsed(path))) == []


@pytest.mark.parametrize("path", sorted((ROOT / "bench").rglob("*.py")), ids=name_of)
def test_benches_need_no_tests(path):
    modules = [n.module or "" for n in ast.walk(parsed(path)) if isinstance(n, ast.ImportFrom)]
    assert not [module for module in modules if module.split(".")[0] == "tests"]


def test_the_page_of_the_house_has_every_layer_in_the_order_of_the_tree():
    page = (ROOT / "docs" / "architecture.md").read_text()
    block = re.search(r"## The layers\n.*?```\n(.*?)```", page, re.DOTALL)
    names = [path.removeprefix("triptych/").removesuffix(".py").removesuffix("/") for path in readme_tree()]
    tree = [name for path, name in zip(readme_tree(), names, strict=True) if path.startswith("triptych/")]
    assert block
    assert block.group(1).split() == [name for name in tree if name and "/" not in name and not name.startswith("__")]


def test_the_layer_rule_can_fail():
    assert broken_rules("triptych.media.audio", {"triptych.space.Space"}) == ["triptych.space.Space"]
    assert broken_rules("triptych.objectives.infonce", {"triptych.similarities.cosine"}) == [
        "triptych.similarities.cosine"
    ]
    assert broken_rules("triptych.data.tables", {"triptych.data.manifest.Row"}) == ["triptych.data.manifest.Row"]
    assert broken_rules("triptych.space", {"triptych.errors.unknown"}) == []


@pytest.mark.parametrize("path", EVERY_FILE, ids=name_of)
def test_files_and_functions_are_short(path):
    text = path.read_text()
    assert len(text.splitlines()) <= LONGEST_FILE, "split it by idea"
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.FunctionDef):
            length = (node.end_lineno or 0) - node.lineno + 1
            assert length <= LONGEST_FUNCTION, f"{node.name} has {length} lines"


@pytest.mark.parametrize("path", EVERY_FILE, ids=name_of)
def test_names_say_what_things_are(path):
    assert path.stem not in BANNED_FILES
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            assert not BANNED_NAME.search(node.name), node.name


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_nothing_in_the_code_is_named_after_a_paper(path):
    """Papers are recipes; the code holds mechanisms. Docstrings may cite."""
    assert not PAPERS.search(path.stem)
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            assert not PAPERS.search(node.name), node.name


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_every_file_class_and_public_function_says_what_it_is(path):
    tree = parsed(path)
    assert ast.get_docstring(tree), "the file has no first line"
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            assert ast.get_docstring(node), f"{node.name} has no docstring"


def test_inheritance_is_one_deep():
    """A class is abstract or final: nobody extends a class of ours, except the abstract ones and the errors."""
    open_classes = {"Encoder", "Similarity", "Objective", "TriptychError"}
    ours = {n.name for f in FILES for n in ast.walk(parsed(f)) if isinstance(n, ast.ClassDef)}
    for path in FILES:
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ClassDef):
                parents = {parent.id for parent in node.bases if isinstance(parent, ast.Name)}
                assert not (parents & ours) - open_classes, f"{path}: {node.name}"


@cache
def readme_tree() -> dict[str, str]:
    """Path -> comment, as the README's tree has them."""
    block = re.search(r"```tree\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert block, "the README has no ```tree block"
    found, folders = {}, []
    for line in block.group(1).splitlines():
        if not line.strip():
            continue
        entry, _, comment = line.strip().partition(" ")
        depth = (len(line) - len(line.lstrip())) // 2
        folders = [*folders[:depth], entry.rstrip("/")]
        found["/".join(folders) + ("/" if entry.endswith("/") else "")] = comment.strip()
    return found


def disk_tree() -> set[str]:
    """The files and folders the README must name: the package file by file, the rest by folder."""
    found = {f"{p.relative_to(ROOT)}" for p in FILES if p.name != "__init__.py" or p.parent == PACKAGE}
    found |= {f"{p.relative_to(ROOT)}/" for p in {f.parent for f in FILES}}
    found |= {f"recipes/{p.name}" for p in (ROOT / "recipes").glob("*.toml")}
    found |= {f"docs/{p.parent.name}/" for p in (ROOT / "docs").glob("*/*.md")}
    return found | {"recipes/", "tests/", "bench/", "docs/"} | {f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md")}


def test_the_readme_tree_is_the_tree_on_disk():
    tree = readme_tree()
    assert set(tree) == disk_tree()
    assert [path for path, comment in tree.items() if not comment] == []


def test_the_readme_lists_every_recipe():
    from triptych.recipe import shipped

    rows = re.findall(r"^\| `(\w+)` \|.*\|$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(shipped())


def test_every_mechanism_is_documented():
    page = runpy.run_path(str(ROOT / "docs" / "mechanisms.py"))
    assert (ROOT / "docs" / "mechanisms.md").read_text() == page["page"](), "run `make docs`"
    for registry in page["TITLES"].values():
        for name, cls in registry.items():
            for part in ("Source:", "Use when:", "Beware:"):
                assert part in (cls.__doc__ or ""), f"{name}: no {part}"


def test_every_command_is_in_the_readme():
    from triptych.app.cli import COMMANDS

    text = (ROOT / "README.md").read_text()
    assert [name for name in COMMANDS if f"triptych {name}" not in text] == []


def test_the_version_is_written_in_one_place():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["hatch"]["version"]["path"] == "triptych/__init__.py"


def test_the_project_speaks_of_itself_alone():
    settings = [ROOT / "Makefile", ROOT / ".pre-commit-config.yaml", *(ROOT / ".github").rglob("*.*")]
    for path in [*EVERY_FILE, *ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *settings]:
        if path != Path(__file__):
            assert not re.search(r"/work/|/root/|/opt/|\bTODO\b|\bFIXME\b", path.read_text()), path
