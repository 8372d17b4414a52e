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

INDEPENDENT_PACKAGES = {"data", "encoders", "similarities", "objectives"}  # never import each other
MAX_FILE_LINES, MAX_FUNCTION_LINES = 400, 60
FORBIDDEN_MODULES = {"utils", "util", "helpers", "helper", "common", "misc", "base"}
FORBIDDEN_NAME = re.compile(r"(Manager|Factory|Base|Helper|Utils?)$|^(get_|_get_)")
PAPER_NAMES = re.compile(r"clap|damsm|attngan|davenet|shre|mltm|siglip|wang|isola", re.IGNORECASE)

PACKAGE_FILES = sorted(PACKAGE.rglob("*.py"))
ALL_FILES = PACKAGE_FILES + sorted((ROOT / "tests").rglob("*.py")) + sorted((ROOT / "bench").rglob("*.py"))


def relative_name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def parse_file(path: Path) -> ast.Module:
    """The syntax tree of a file; most tests look at every file."""
    return ast.parse(path.read_text())


@cache
def read_layers() -> dict[str, int]:
    """The place of every module in the README's tree; a folder's own module stands after its files."""
    layers: dict[str, int] = {}
    for index, path in enumerate(read_readme_tree()):
        if path.startswith("triptych/") and path.endswith(".py"):
            parts = Path(path).with_suffix("").parts
            layers[".".join(parts)] = index
            for depth in range(2, len(parts)):
                layers[".".join(parts[:depth])] = index
    return layers


def find_imports(tree: ast.Module) -> set[str]:
    """Every triptych module a file imports, anywhere in it."""
    modules = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            modules |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {module for module in modules if module.split(".")[0] == "triptych"}


def find_forbidden_imports(module: str, modules: set[str]) -> list[str]:
    """The imports of a module that do not stand above it in the tree, or that cross between strangers."""
    layers = read_layers()
    layer, package = layers[module], module.split(".")[1]
    forbidden = []
    for other in modules:
        if other == "triptych.__version__":
            continue
        imported_module = next((m for m in (other, other.rpartition(".")[0]) if m in layers), None)
        crosses_packages = {package, other.split(".")[1]} <= INDEPENDENT_PACKAGES and package != other.split(".")[1]
        if imported_module is None or layers[imported_module] > layer or crosses_packages:
            forbidden.append(other)
    return forbidden


@pytest.mark.parametrize("path", PACKAGE_FILES, ids=relative_name)
def test_modules_import_only_from_layers_above(path):
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    if module in {"triptych", "triptych.__main__"}:
        return  # the front doors open on everything
    assert find_forbidden_imports(module, find_imports(parse_file(path))) == []


@pytest.mark.parametrize("path", sorted((ROOT / "bench").rglob("*.py")), ids=relative_name)
def test_bench_does_not_import_tests(path):
    modules = [n.module or "" for n in ast.walk(parse_file(path)) if isinstance(n, ast.ImportFrom)]
    assert not [module for module in modules if module.split(".")[0] == "tests"]


def test_the_architecture_page_lists_every_layer_in_order():
    page = (ROOT / "docs" / "architecture.md").read_text()
    block = re.search(r"## The layers\n.*?```\n(.*?)```", page, re.DOTALL)
    names = [path.removeprefix("triptych/").removesuffix(".py").removesuffix("/") for path in read_readme_tree()]
    tree = [name for path, name in zip(read_readme_tree(), names, strict=True) if path.startswith("triptych/")]
    assert block
    assert block.group(1).split() == [name for name in tree if name and "/" not in name and not name.startswith("__")]


def test_the_layer_rule_can_fail():
    assert find_forbidden_imports("triptych.media.audio", {"triptych.space.Space"}) == ["triptych.space.Space"]
    assert find_forbidden_imports("triptych.objectives.infonce", {"triptych.similarities.cosine"}) == [
        "triptych.similarities.cosine"
    ]
    assert find_forbidden_imports("triptych.data.tables", {"triptych.data.manifest.Row"}) == [
        "triptych.data.manifest.Row"
    ]
    assert find_forbidden_imports("triptych.space", {"triptych.errors.describe_unknown"}) == []


@pytest.mark.parametrize("path", ALL_FILES, ids=relative_name)
def test_files_and_functions_are_short(path):
    text = path.read_text()
    assert len(text.splitlines()) <= MAX_FILE_LINES, "split it by idea"
    for node in ast.walk(parse_file(path)):
        if isinstance(node, ast.FunctionDef):
            length = (node.end_lineno or 0) - node.lineno + 1
            assert length <= MAX_FUNCTION_LINES, f"{node.name} has {length} lines"


@pytest.mark.parametrize("path", ALL_FILES, ids=relative_name)
def test_names_are_not_generic(path):
    assert path.stem not in FORBIDDEN_MODULES
    for node in ast.walk(parse_file(path)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            assert not FORBIDDEN_NAME.search(node.name), node.name


@pytest.mark.parametrize("path", PACKAGE_FILES, ids=relative_name)
def test_nothing_in_the_code_is_named_after_a_paper(path):
    """Papers are recipes; the code holds mechanisms. Docstrings may cite."""
    assert not PAPER_NAMES.search(path.stem)
    for node in ast.walk(parse_file(path)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            assert not PAPER_NAMES.search(node.name), node.name


@pytest.mark.parametrize("path", PACKAGE_FILES, ids=relative_name)
def test_modules_classes_and_public_functions_have_docstrings(path):
    module = parse_file(path)
    assert ast.get_docstring(module), "the file has no first line"
    for node in module.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            assert ast.get_docstring(node), f"{node.name} has no docstring"


def test_inheritance_is_one_level_deep():
    """A class is abstract or final: nobody extends a class of ours, except the abstract ones and the errors."""
    abstract_classes = {"Encoder", "Similarity", "Objective", "TriptychError"}
    class_names = {n.name for f in PACKAGE_FILES for n in ast.walk(parse_file(f)) if isinstance(n, ast.ClassDef)}
    for path in PACKAGE_FILES:
        for node in ast.walk(parse_file(path)):
            if isinstance(node, ast.ClassDef):
                parents = {parent.id for parent in node.bases if isinstance(parent, ast.Name)}
                assert not (parents & class_names) - abstract_classes, f"{path}: {node.name}"


@cache
def read_readme_tree() -> dict[str, str]:
    """Path -> comment, as the README's tree has them."""
    block = re.search(r"```tree\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert block, "the README has no ```tree block"
    comments, folders = {}, []
    for line in block.group(1).splitlines():
        if not line.strip():
            continue
        entry, _, comment = line.strip().partition(" ")
        depth = (len(line) - len(line.lstrip())) // 2
        folders = [*folders[:depth], entry.rstrip("/")]
        comments["/".join(folders) + ("/" if entry.endswith("/") else "")] = comment.strip()
    return comments


def read_disk_tree() -> set[str]:
    """The files and folders the README must name: the package file by file, the rest by folder."""
    paths = {f"{p.relative_to(ROOT)}" for p in PACKAGE_FILES if p.name != "__init__.py" or p.parent == PACKAGE}
    paths |= {f"{p.relative_to(ROOT)}/" for p in {f.parent for f in PACKAGE_FILES}}
    paths |= {f"recipes/{p.name}" for p in (ROOT / "recipes").glob("*.toml")}
    paths |= {f"docs/{p.parent.name}/" for p in (ROOT / "docs").glob("*/*.md")}
    return paths | {"recipes/", "tests/", "bench/", "docs/"} | {f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md")}


def test_the_readme_tree_is_the_tree_on_disk():
    tree = read_readme_tree()
    assert set(tree) == read_disk_tree()
    assert [path for path, comment in tree.items() if not comment] == []


def test_the_readme_lists_every_recipe():
    from triptych.recipe import list_bundled_recipes

    rows = re.findall(r"^\| `(\w+)` \|.*\|$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(list_bundled_recipes())


def test_every_mechanism_is_documented():
    page = runpy.run_path(str(ROOT / "docs" / "mechanisms.py"))
    assert (ROOT / "docs" / "mechanisms.md").read_text() == page["render_page"](), "run `make docs`"
    for registry in page["REGISTRIES"].values():
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


def test_no_local_paths_or_todo_comments():
    settings = [ROOT / "Makefile", ROOT / ".pre-commit-config.yaml", *(ROOT / ".github").rglob("*.*")]
    for path in [*ALL_FILES, *ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *settings]:
        if path != Path(__file__):
            assert not re.search(r"/work/|/root/|/opt/|\bTODO\b|\bFIXME\b", path.read_text()), path
