"""The modules whose edges count, and which tests are theirs."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCOPE = (
    "raft",
    "server/requests/produce.py",
    "server/requests/parked_appends.py",
    "server/requests/pending_produce.py",
    "server/requests/produce_response.py",
    "server/partition/driver.py",
    "server/model/producer_state.py",
    "storage/log_writer.py",
    "storage/recovery.py",
    "storage/torn_tail.py",
    "wire/produced.py",
)
PRODUCT = ("raft", "wire", "storage", "config", "server", "simulation")
"""Folders whose code decides which lines a test or a seed executes."""


@dataclass(frozen=True, slots=True)
class ModuleSource:
    """`name` is its path below the root; `filename` is what its code objects say."""

    name: str
    filename: str
    source: str
    tests: str
    """The folder of the tests that try its mutants."""

    @property
    def digest(self) -> str:
        """Of the source: the same as long as the module is."""
        return digest_of([self.source])


def modules_in_scope(only: Collection[str] = ()) -> list[ModuleSource]:
    """All, or those that `only` names: by path, by folder or by their last name."""
    return [
        _load(path) for path in _paths() if not only or any(_is_named(path, name) for name in only)
    ]


def _paths() -> Iterator[str]:
    for place in SCOPE:
        path = ROOT / place
        found = sorted(path.rglob("*.py")) if path.is_dir() else [path]
        yield from (str(each.relative_to(ROOT)) for each in found)


def _is_named(path: str, name: str) -> bool:
    return path == name or path.startswith(name.rstrip("/") + "/") or Path(path).stem == name


def _load(path: str) -> ModuleSource:
    module = import_module(
        "quorumd." + path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    )
    assert module.__file__ is not None
    return ModuleSource(
        path, module.__file__, (ROOT / path).read_text(), f"tests/{path.partition('/')[0]}"
    )


def digest_of(texts: Collection[str]) -> str:
    """A hash of texts."""
    hashed = blake2b(digest_size=12)
    for text in texts:
        hashed.update(b"%d " % len(text))
        hashed.update(text.encode())
    return hashed.hexdigest()


def product_digest() -> str:
    """Of everything whose change may move what is executed."""
    paths = [path for folder in PRODUCT for path in sorted((ROOT / folder).rglob("*.py"))]
    edges = Path(__file__).parent
    return digest_of([path.read_text() for path in paths if path.parent != edges])
