"""Plug-ins: encoders, similarities, objectives, heads and datasets of other packages.

A plug-in is named by its entry point (`focal`) or by its module and class (`my_package.losses:Focal`). Recipes and
spaces may come from strangers, so a module that a file names is imported only if the user has allowed its package. A
package is allowed if it is installed with an entry point in one of GROUPS, or if the user names the package: with
`--allow-plugin` of a command, `allow_plugins` in Python, or the environment variable TRIPTYCH_ALLOW_PLUGINS.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import Distribution, distributions, packages_distributions
from importlib.util import find_spec
from threading import RLock
from typing import Any, TypeVar

from triptych.errors import PluginError, RecipeError, describe_unknown

T = TypeVar("T")

GROUPS = {  # role of a mechanism: group of its entry points
    "encoder": "triptych.encoders",
    "similarity": "triptych.similarities",
    "objective": "triptych.objectives",
    "head": "triptych.heads",
    "dataset": "triptych.datasets",
}
ALLOW_VARIABLE = "TRIPTYCH_ALLOW_PLUGINS"  # the value lists the allowed packages, separated by commas
NAME = re.compile(r"[A-Za-z]\w*", re.ASCII)
MODULE = re.compile(r"(?!__)[A-Za-z_]\w*(?:\.(?!__)[A-Za-z_]\w*)*", re.ASCII)  # without parts such as __main__
REFERENCE = re.compile(rf"({MODULE.pattern}):({NAME.pattern})", re.ASCII)
PIP_REQUIREMENT = re.compile(r"[A-Za-z0-9](?:[\w.-]{0,98}[A-Za-z0-9])?==[\w.!+]{1,50}", re.ASCII)
MAX_REQUIREMENTS = 20  # number of packages of a space file that are looked up
MAX_NAME_LENGTH = 200  # in characters; longer names are invalid, and are cut in messages

_allowed: ContextVar[tuple[str, ...]] = ContextVar("allowed plug-in packages", default=())
_import_lock = RLock()


@dataclass(frozen=True)
class Plugin:
    """A mechanism of another package. `package` is the name for pip; without an installed package, `version` is ""."""

    role: str
    name: str
    reference: str  # module:attribute
    package: str
    version: str

    def __str__(self) -> str:
        return f"{self.role} {self.reference} of the package {self.package} {self.version}".rstrip()


class Registry(dict[str, T]):
    """The mechanisms of one role by name. The dict contains our own mechanisms; a missing key is looked up as plug-in.

    Our own mechanisms take precedence over plug-ins of the same name.

    Args:
        role: A key of GROUPS.
        required_type: The base class of the mechanisms; for datasets, the class of which they are instances.
        required_attributes: Attributes that the class of a plug-in must define.
        space_arguments: Arguments that the space passes to the constructor; the other arguments are keys in a recipe.

    Example:
        >>> OBJECTIVES["infonce"], OBJECTIVES["my_package.losses:Focal"]
    """

    def __init__(
        self,
        role: str,
        required_type: type,
        required_attributes: tuple[str, ...] = (),
        space_arguments: tuple[str, ...] = (),
    ) -> None:
        super().__init__()
        self.role, self.required_type = role, required_type
        self.required_attributes, self.space_arguments = required_attributes, space_arguments
        self._loaded: dict[str, tuple[T, Plugin]] = {}

    def __missing__(self, name: str) -> T:
        """Import a plug-in; raise PluginError if it is not allowed or not usable, RecipeError if it is unknown."""
        return self._load(name)[0]

    def known_names(self) -> list[str]:
        """Return the names of our own mechanisms and of the installed plug-ins, without importing the plug-ins."""
        return sorted({*self, *(plugin.name for plugin in list_plugins(self.role) if NAME.fullmatch(plugin.name))})

    def knows(self, name: str) -> bool:
        """Return whether a name is one of `known_names` or has the form module:Class."""
        return name in self or ":" in name or name in self.known_names()

    def find_package(self, name: str) -> tuple[str, str] | None:
        """Return the package that provides a mechanism, and its version; None for our own mechanisms."""
        if name in self:
            return None
        plugin = self._load(name)[1]
        return plugin.package, plugin.version

    def _load(self, name: str) -> tuple[T, Plugin]:
        if name not in self._loaded:
            plugin = self._resolve_reference(name) if ":" in name else self._resolve_name(name)
            mechanism = _import_attribute(plugin)
            self._check(mechanism, plugin)
            self._loaded[name] = mechanism, plugin
        return self._loaded[name]

    def _resolve_name(self, name: str) -> Plugin:
        matches = [plugin for plugin in list_plugins(self.role) if plugin.name == name and NAME.fullmatch(name)]
        if not matches:
            raise RecipeError(describe_unknown(self.role, name[:MAX_NAME_LENGTH], self.known_names()))
        if len(matches) > 1:
            packages = " and ".join(f"{plugin.package} ({plugin.reference})" for plugin in matches)
            problem = f"{self.role} {name!r} is registered by {packages}"
            raise PluginError(f"{problem}; name the plug-in by its module and class, such as {matches[0].reference}")
        return matches[0]

    def _resolve_reference(self, reference: str) -> Plugin:
        quoted = f"{self.role} {reference[:MAX_NAME_LENGTH]!r}"
        if len(reference) > MAX_NAME_LENGTH or not (match := REFERENCE.fullmatch(reference)):
            raise PluginError(f"{quoted}: not of the form package.module:Class")
        module, installed = match.group(1), list_plugins()
        if _is_reserved(module):
            raise PluginError(f"{quoted}: {module} has no plug-ins; name our own mechanisms by their registered name")
        if not _is_allowed(module, installed):
            package = module.partition(".")[0]
            raise PluginError(
                f"{quoted} needs the plug-in package {package}, which is not allowed; nothing was imported. If you "
                f"trust {package}, install it with pip, and if it does not register its plug-ins, allow it with "
                f'--allow-plugin {package} (in Python allow_plugins=["{package}"], for servers '
                f"{ALLOW_VARIABLE}={package})"
            )
        registered = next((p for p in installed if p.role == self.role and p.reference == reference), None)
        return registered or Plugin(self.role, reference, reference, *_find_distribution(module, installed))

    def _check(self, mechanism: Any, plugin: Plugin) -> None:
        """Raise PluginError unless the mechanism has the type and the attributes that this role requires."""
        required = f"{self.required_type.__module__}.{self.required_type.__qualname__}"
        if self.role == "dataset":
            if not isinstance(mechanism, self.required_type):
                raise PluginError(f"{plugin} is not an instance of {required}")
            return
        if not (isinstance(mechanism, type) and issubclass(mechanism, self.required_type)):
            raise PluginError(f"{plugin} is not a subclass of {required}")
        if inspect.isabstract(mechanism):
            methods = ", ".join(sorted(mechanism.__abstractmethods__))
            raise PluginError(f"{plugin} does not implement {methods}")
        for attribute in self.required_attributes:
            if not hasattr(mechanism, attribute):
                raise PluginError(f"{plugin}: the class does not define {attribute}; see {required}")


@contextmanager
def allow(packages: str | Iterable[str]) -> Iterator[None]:
    """Allow recipes and spaces that are loaded in the block to import plug-ins from packages and their sub-modules.

    A plug-in that was imported once stays usable after the block.

    Example:
        >>> with plugins.allow(["my_package"]):
        ...     recipe = Recipe.load("mine.toml")
    """
    names = (packages,) if isinstance(packages, str) else tuple(packages)
    for name in names:
        _check_package_name(name)
    token = _allowed.set((*_allowed.get(), *names))
    try:
        yield
    finally:
        _allowed.reset(token)


def list_plugins(role: str | None = None) -> list[Plugin]:
    """List the plug-ins that installed packages register, of one role or of all roles. Nothing is imported."""
    roles = {group: key for key, group in GROUPS.items() if role in (None, key)}
    plugins: dict[str, list[Plugin]] = {}
    for package in _list_packages():
        if entries := [entry for entry in package.entry_points if entry.group in roles]:
            of_package = [
                Plugin(roles[entry.group], entry.name, _read_reference(entry.value), package.name, package.version)
                for entry in entries
            ]
            # Of two copies of a package, Python imports the first one on sys.path.
            plugins.setdefault(re.sub(r"[-_.]+", "-", package.name).lower(), of_package)
    listed = [plugin for of_package in plugins.values() for plugin in of_package]
    return sorted(listed, key=lambda plugin: (list(GROUPS).index(plugin.role), plugin.name, plugin.package))


def _read_reference(value: str) -> str:
    """Return module:attribute of the value of an entry point, which may also name extras: module:attribute [extra]."""
    return value.partition("[")[0].replace(" ", "")


def find_version(package: str) -> str | None:
    """Return the version of an installed package; None if the package is not installed."""
    return next((installed.version for installed in _list_packages(package)), None)


def describe_missing(requirements: Any) -> str | None:
    """Return a message about the packages, of a dict from package to version, that are not installed; None if none is.

    The dict comes from a space file, so names that pip would not accept are ignored, and the list is cut.
    """
    items = [] if not isinstance(requirements, Mapping) else list(requirements.items())[:MAX_REQUIREMENTS]
    valid = [(name, version) for name, version in items if PIP_REQUIREMENT.fullmatch(f"{name}=={version}")]
    missing = [f"{name}=={version}" for name, version in valid if find_version(name) is None]
    if not missing:
        return None
    names = ", ".join(requirement.replace("==", " ") for requirement in missing)
    return f"needs plug-ins that are not installed: {names}. If you trust them, run: pip install {' '.join(missing)}"


def _check_package_name(name: str) -> None:
    if not MODULE.fullmatch(name):
        problem = f"{name[:MAX_NAME_LENGTH]!r} is not the import name of a package"
        raise PluginError(f"{problem}; give a name such as my_package, without version, class or path")
    if _is_reserved(name):
        raise PluginError(f"{name} has no plug-ins; allow the package that the recipe or space needs")


def _is_reserved(module: str) -> bool:
    return module.partition(".")[0] in {*sys.stdlib_module_names, "triptych"}


def _is_allowed(module: str, installed: Iterable[Plugin]) -> bool:
    variable = [name.strip() for name in os.environ.get(ALLOW_VARIABLE, "").split(",") if name.strip()]
    for name in variable:
        _check_package_name(name)
    packages = {*_allowed.get(), *variable, *(_find_root(plugin.reference.partition(":")[0]) for plugin in installed)}
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def _find_root(module: str) -> str:
    """Return the top-level package of a module. A namespace package, which several packages share, does not count."""
    parts = module.split(".")
    with _without_current_folder(), suppress(ImportError, ValueError):
        for depth in range(1, len(parts)):
            spec = find_spec(".".join(parts[:depth]))  # importing a namespace package runs no code
            if spec is None or spec.origin is not None:
                return ".".join(parts[:depth])
    return module


def _find_distribution(module: str, installed: Iterable[Plugin]) -> tuple[str, str]:
    """Return the name and version of the package that provides a module; (import name, "") if it is not installed."""
    top = module.partition(".")[0]
    names = [plugin.package for plugin in installed if plugin.reference.partition(":")[0].partition(".")[0] == top]
    for name in [*names, top]:
        if version := find_version(name):
            return name, version
    for name in packages_distributions().get(top, ()):
        return name, find_version(name) or ""
    return top, ""


def _import_attribute(plugin: Plugin) -> Any:
    """Import the module of a plug-in, and return the attribute that the plug-in names."""
    match = REFERENCE.fullmatch(plugin.reference)
    if not match:
        raise PluginError(f"{plugin}: not of the form package.module:Class; correct the entry point")
    module_name, attribute = match.groups()
    try:
        with _without_current_folder():
            module = import_module(module_name)
    except (Exception, SystemExit) as error:  # importing a module can raise any exception
        missing = getattr(error, "name", None) if isinstance(error, ModuleNotFoundError) else None
        if missing and f"{module_name}.".startswith(f"{missing}."):
            problem = f"the module {missing} is not installed; install the package that contains it with pip"
            raise PluginError(f"{plugin}: {problem} (modules in the current folder are not imported)") from error
        problem = " ".join(f"{type(error).__name__}: {error}".split())[:500]
        raise PluginError(f"{plugin} cannot be imported ({problem}); update or uninstall it") from error
    if not hasattr(module, attribute):
        names = [name for name, value in vars(module).items() if isinstance(value, type) and name[0] != "_"]
        raise PluginError(f"{plugin}: {describe_unknown('class', attribute, names)}")
    return getattr(module, attribute)


def _list_packages(name: str | None = None) -> Iterable[Distribution]:
    """Return the installed packages, or those of one name. Metadata in the current folder does not count."""
    implicit = _find_implicit_entries()
    path = [entry for i, entry in enumerate(sys.path) if i not in implicit]
    return distributions(path=path) if name is None else distributions(name=name, path=path)


def _find_implicit_entries() -> list[int]:
    """Return the indices in sys.path of the current folder, where Python and not the user added it.

    `python -m` adds the path of the current folder; `python -c`, the interactive prompt and notebooks add "".
    """
    with suppress(OSError):  # the current folder may have been deleted
        is_module_run = getattr(sys.modules.get("__main__"), "__spec__", None) is not None
        if is_module_run and sys.path[:1] == [os.getcwd()]:  # noqa: PTH109
            return [0, *(i for i, entry in enumerate(sys.path) if entry == "")]
    return [i for i, entry in enumerate(sys.path) if entry == ""]


@contextmanager
def _without_current_folder() -> Iterator[None]:
    """Import only from sys.path entries that the user chose: the current folder may contain a stranger's files."""
    with _import_lock:
        removed = [(i, sys.path[i]) for i in _find_implicit_entries()]
        for i, _ in reversed(removed):
            del sys.path[i]
        try:
            yield
        finally:
            for i, entry in removed:
                sys.path.insert(i, entry)
