"""The rules of CONTRIBUTING.md that can be checked on the source: layers, sizes, names, docstrings, generated pages."""

import ast
import re
import runpy
import tomllib
from collections import Counter
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "triptych"

MAX_FILE_LINES, MAX_FUNCTION_LINES = 400, 60
FORBIDDEN_MODULES = {"utils", "util", "helpers", "helper", "common", "misc", "base"}
FORBIDDEN_NAME = re.compile(r"(Manager|Factory|Base|Helper|Utils?)$|^(get_|_get_)")
PAPER_NAMES = re.compile(r"clap|damsm|attngan|davenet|shre|mltm|siglip|wang|isola", re.IGNORECASE)
OLD_NAME = re.compile(
    r"found|kinds?|places?|alone|own|said|told|kept|asked|heats?|moments?|pictures?|films?|sounds?|team|standing|shelf"
    r"|remembered|given|lab|book|desk|refusal|guard|meter|aim|prices"
)
# Methods of Space import checkpoint.py when they are called, because checkpoint.py imports space.py.
LATE_IMPORTS = {("triptych.space", "triptych.checkpoint")}
REPOSITORY_TESTS = {"test_architecture", "test_contributing", "test_public_interface", "test_reference"}

PACKAGE_FILES = sorted(PACKAGE.rglob("*.py"))
ALL_FILES = PACKAGE_FILES + sorted((ROOT / "tests").rglob("*.py")) + sorted((ROOT / "bench").rglob("*.py"))


def relative_name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def parse_file(path: Path) -> ast.Module:
    """Return the syntax tree of a file."""
    return ast.parse(path.read_text())


@cache
def read_layers() -> dict[str, int]:
    """Return the line of each top-level module or folder in the list of docs/architecture.md."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    block = re.search(r"## Layers\n.*?```\n(.*?)```", page, re.DOTALL)
    assert block, "docs/architecture.md has no list of layers"
    return {name: index for index, line in enumerate(block.group(1).splitlines()) for name in line.split()}


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@cache
def list_definitions(path: Path) -> list[ast.FunctionDef | ast.ClassDef]:
    """List all functions and classes of a file."""
    return [node for node in ast.walk(parse_file(path)) if isinstance(node, ast.FunctionDef | ast.ClassDef)]


def count_lines(path: Path) -> int:
    return path.read_bytes().count(b"\n")


def find_imports(tree: ast.Module) -> set[str]:
    """Return every name that a file imports from triptych, at any level."""
    modules = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            modules |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {module for module in modules if module.split(".")[0] == "triptych"}


def find_checked_imports(path: Path) -> set[str]:
    """Return the imports of a file from triptych, without LATE_IMPORTS."""
    modules = find_imports(parse_file(path))
    return {module for module in modules if (module_name(path), module.rpartition(".")[0]) not in LATE_IMPORTS}


def find_forbidden_imports(module: str, modules: set[str]) -> list[str]:
    """Return the imports of a module from its own layer or from a layer below it; its own folder is allowed."""
    layers, package = read_layers(), module.split(".")[1]
    imported = {other: other.split(".")[1] for other in modules if other != "triptych.__version__"}
    return [other for other, name in imported.items() if name != package and layers[name] >= layers[package]]


def test_modules_import_only_from_layers_above():
    for path in PACKAGE_FILES:
        if module_name(path) not in {"triptych", "triptych.__main__"}:  # the entry points import everything
            assert find_forbidden_imports(module_name(path), find_checked_imports(path)) == [], path


def test_imports_have_no_cycles():
    files = {module_name(path): path for path in PACKAGE_FILES if module_name(path) != "triptych"}
    graph = {
        module: {
            imported if imported in files else imported.rpartition(".")[0]
            for imported in find_checked_imports(path)
            if imported != "triptych.__version__"
        }
        for module, path in files.items()
    }
    list(TopologicalSorter(graph).static_order())  # raises CycleError


def test_the_list_of_layers_is_complete():
    names = {path.stem for path in PACKAGE.glob("*.py") if not path.stem.startswith("__")}
    assert set(read_layers()) == names | {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()}


def test_bench_does_not_import_tests():
    for path in (ROOT / "bench").rglob("*.py"):
        modules = [n.module or "" for n in ast.walk(parse_file(path)) if isinstance(n, ast.ImportFrom)]
        assert not [module for module in modules if module.split(".")[0] == "tests"], path


def test_the_layer_rule_can_fail():
    assert find_forbidden_imports("triptych.media.audio", {"triptych.space.Space"}) == ["triptych.space.Space"]
    assert find_forbidden_imports("triptych.similarities.cosine", {"triptych.encoders.minilm"}) == [
        "triptych.encoders.minilm"
    ]
    assert find_forbidden_imports("triptych.space", {"triptych.errors.describe_unknown"}) == []


def test_files_and_functions_are_short():
    long_files = [
        f"{relative_name(path)}: split it by topic" for path in ALL_FILES if count_lines(path) > MAX_FILE_LINES
    ]
    long_functions = [
        f"{relative_name(path)}: {node.name} has {length} lines"
        for path in ALL_FILES
        for node in list_definitions(path)
        if isinstance(node, ast.FunctionDef)
        and (length := (node.end_lineno or 0) - node.lineno + 1) > MAX_FUNCTION_LINES
    ]
    assert long_files + long_functions == []


def test_names_are_not_generic():
    assert [path for path in ALL_FILES if path.stem in FORBIDDEN_MODULES] == []
    names = [f"{relative_name(path)}: {node.name}" for path in ALL_FILES for node in list_definitions(path)]
    assert [name for name in names if FORBIDDEN_NAME.search(name.rpartition(" ")[2])] == []


def find_defined_names(path: Path) -> set[str]:
    """Return the names that a file defines: functions, classes, parameters, variables and attributes."""
    names = {path.stem}
    for node in ast.walk(parse_file(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(node.id if isinstance(node, ast.Name) else node.attr)
    return names


def test_names_of_the_earlier_vocabulary_are_not_used():
    """docs/glossary.md has the vocabulary. A name with many meanings is replaced by the name of the thing itself."""
    old_names = [
        f"{relative_name(path)}: {name}"
        for path in PACKAGE_FILES
        for name in sorted(find_defined_names(path))
        if OLD_NAME.fullmatch(name.strip("_").lower())
    ]
    assert old_names == []


def test_class_names_are_unique():
    names = Counter(n.name for path in PACKAGE_FILES for n in list_definitions(path) if isinstance(n, ast.ClassDef))
    assert [name for name, count in names.items() if count > 1] == []


def find_test_names(module: Path) -> set[str]:
    """Return the possible names of the tests of a module or of its folder; a suffix _ASPECT may follow."""
    folder = module.relative_to(PACKAGE).parent
    names = {f"{folder}/test_{module.stem.strip('_')}", f"{folder}/test_init", f"{folder}/test_{folder.name}"}
    return {name.removeprefix("./") for name in names}


def test_tests_mirror_the_package():
    """tests/x/test_y.py tests triptych/x/y.py; tests/x/test_x.py or test_init.py tests the folder x."""
    tests = {str(path.relative_to(ROOT / "tests").with_suffix("")) for path in (ROOT / "tests").rglob("test_*.py")}
    names = {module: find_test_names(module) for module in PACKAGE_FILES}
    matches = {
        module: {test for test in tests for name in names[module] if test == name or test.startswith(f"{name}_")}
        for module in PACKAGE_FILES
    }
    assert [relative_name(m) for m in PACKAGE_FILES if not matches[m] and m.stem not in {"__init__", "__main__"}] == []
    others = tests - set().union(*matches.values()) - REPOSITORY_TESTS
    assert sorted(test for test in others if not test.startswith("bench/")) == []


def test_nothing_in_the_code_is_named_after_a_paper():
    """Papers are recipes; the code implements mechanisms. Docstrings may cite papers."""
    assert [path for path in PACKAGE_FILES if PAPER_NAMES.search(path.stem)] == []
    names = [f"{relative_name(path)}: {node.name}" for path in PACKAGE_FILES for node in list_definitions(path)]
    assert [name for name in names if PAPER_NAMES.search(name.rpartition(" ")[2])] == []


def test_modules_classes_and_public_functions_have_docstrings():
    undocumented = [
        f"{relative_name(path)}: {getattr(node, 'name', 'the module')}"
        for path in PACKAGE_FILES
        for node in [parse_file(path), *parse_file(path).body]
        if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef)
        and not getattr(node, "name", "").startswith("_")
        and not ast.get_docstring(node)
    ]
    assert undocumented == []


def test_inheritance_is_one_level_deep():
    """Only abstract classes and errors have subclasses."""
    abstract_classes = {"Backend", "Encoder", "Head", "Similarity", "Objective", "TriptychError", "ItemFields"}
    abstract_classes |= {"Callback", "RunLogger"}
    class_names = {n.name for f in PACKAGE_FILES for n in ast.walk(parse_file(f)) if isinstance(n, ast.ClassDef)}
    for path in PACKAGE_FILES:
        for node in ast.walk(parse_file(path)):
            if isinstance(node, ast.ClassDef):
                parents = {parent.id for parent in node.bases if isinstance(parent, ast.Name)}
                assert not (parents & class_names) - abstract_classes, f"{path}: {node.name}"


def test_the_readme_lists_every_recipe():
    from triptych.recipe_files import list_bundled_recipes

    rows = re.findall(r"^\| `(\w+)` \|.*\|$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(list_bundled_recipes())


def test_links_and_paths_in_the_docs_exist():
    missing = []
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
        links = [link for link in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text) if "://" not in link]
        missing += [f"{relative_name(page)}: {link}" for link in links if not (page.parent / link).exists()]
        paths = re.findall(r"`((?:\w+/)+\w+\.(?:py|md|toml|js))`", text) if page.name != "CONTRIBUTING.md" else []
        missing += [f"{relative_name(page)}: {p}" for p in paths if not ((ROOT / p).exists() or (PACKAGE / p).exists())]
    assert missing == []


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
