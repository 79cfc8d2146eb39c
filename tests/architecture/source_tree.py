"""Reads the project's sources as syntax trees: what each module imports, calls and documents."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LINKED = ("raft", "wire", "storage", "config", "security", "server")
"""Folders at the top that are imported as parts of quorumd, in which links stand for them."""
PACKAGES = (*LINKED, "quorumd", "simulation", "chaos", "bench")
_SKIPPED = frozenset({"__pycache__", "build", "node_modules"})


@dataclass(frozen=True, slots=True)
class Module:
    """A Python file: its dotted name, its path below the root, and its text."""

    name: str
    path: Path
    is_package: bool
    text: str

    @property
    def tree(self) -> ast.Module:
        """Its syntax tree, made when a test asks for it: all of them take seconds, and much memory."""
        return tree_of(self.text)

    @property
    def package(self) -> str:
        """The top-level folder that this module is in."""
        return package_of(self.name)


tree_of = cache(ast.parse)
"""The tree of a module's text. `conftest` has them forgotten behind the tests of a file."""


def package_of(name: str) -> str:
    """The top-level folder that a dotted name belongs to."""
    top, *rest = name.split(".")
    return rest[0] if top == "quorumd" and rest and rest[0] in LINKED else top


def parse_module(name: str, text: str, *, path: Path | None = None) -> Module:
    """A module from its text; the name of a package is that of the folder."""
    where = path or Path(name.replace(".", "/") + ".py")
    return Module(name, where, where.name == "__init__.py", text)


def modules_below(folder: str) -> list[Module]:
    """Every module below a folder of the project, links not followed, by path."""
    return [_read(path) for path in sorted(_files_below(ROOT / folder)) if path.suffix == ".py"]


def all_modules() -> list[Module]:
    """Every module of the project, tests and scripts included, by path."""
    return modules_below("")


def text_files() -> list[Path]:
    """Every file of the project that people write, tests left out, relative to the root."""
    suffixes = {".py", ".md", ".toml", ".yaml", ".yml", ".c", ".sh", ".json", ".service", ""}
    files = (path.relative_to(ROOT) for path in sorted(_files_below(ROOT)))
    return [path for path in files if path.suffix in suffixes and path.parts[0] != "tests"]


def _statements(tree: ast.Module) -> Iterator[ast.AST]:
    """Those that may be imports, wherever they stand. Most of a tree is expressions, which hold none."""
    found: list[ast.AST] = [tree]
    for node in found:
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            found += getattr(node, name, ())
    return iter(found)


def imports_of(module: Module, own_modules: frozenset[str]) -> Iterator[tuple[int, str]]:
    """Line and dotted name of every module imported, wherever the import stands.

    `from wire import records` names `quorumd.wire.records` if there is such a module, else `wire`.
    """
    for node in _statements(module.tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(module, node)
            for alias in node.names:
                full = f"{base}.{alias.name}"
                yield node.lineno, full if full in own_modules else base


def imported_names(module: Module) -> Iterator[tuple[int, str]]:
    """Line and dotted name of everything imported, the names that a module defines included."""
    for node in _statements(module.tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(module, node)
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


def imports_within(modules: list[Module]) -> dict[str, list[str]]:
    """Of each module, those of the others that it imports. A package is not what lies in it."""
    own = frozenset(module.name for module in modules)
    return {
        module.name: sorted({name for _, name in imports_of(module, own)} & own - {module.name})
        for module in modules
    }


def circles(imports: dict[str, list[str]]) -> list[str]:
    """Modules that are left when those are taken away, again and again, that import none of the rest."""
    left = dict(imports)
    while done := [name for name, others in left.items() if not set(others) & left.keys()]:
        for name in done:
            del left[name]
    return sorted(left)


def calls_of(module: Module) -> Iterator[tuple[int, str]]:
    """Line and dotted name of everything that is called, as written: `open`, `uuid.uuid4`."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call):
            yield node.lineno, _dotted(node.func)


def _absolute(module: Module, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    parts = module.name.split(".")
    parents = parts[: len(parts) - node.level + (1 if module.is_package else 0)]
    return ".".join([*parents, *([node.module] if node.module else [])])


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def _read(path: Path) -> Module:
    relative = path.relative_to(ROOT)
    parts = relative.with_suffix("").parts
    name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    if parts[0] in LINKED:
        name = f"quorumd.{name}"
    return parse_module(name, path.read_text(encoding="utf-8"), path=relative)


def _files_below(folder: Path) -> Iterator[Path]:
    if not folder.is_dir():
        return
    for path in folder.iterdir():
        if path.name in _SKIPPED or path.name.endswith(".egg-info") or _is_hidden(path):
            continue
        if path.is_dir() and not path.is_symlink():
            yield from _files_below(path)
        elif path.is_file():
            yield path


def _is_hidden(path: Path) -> bool:
    """Hidden folders hold what tools made; the CI's script is ours."""
    return path.name.startswith(".") and path.name != ".ci"
