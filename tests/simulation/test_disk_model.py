"""The simulated disk against real files, and against a byte-level model of what may survive."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from quorumd.storage.filesystem import FileSystem, RealFileSystem
from simulation.machines.disk import SimDisk
from simulation.machines.disk_image import PAGE_BYTES, SECTOR_BYTES, Survival

NAMES = ["a", "b", "c"]
BLOCKS = {Survival.SECTORS: SECTOR_BYTES, Survival.PAGES: PAGE_BYTES}

CALLS = [
    *("open", "create", "create", "pwritev", "pwritev", "pwritev", "pread", "pread", "truncate"),
    *("size", "fsync", "rename", "unlink", "listdir", "mkdir", "exists", "close", "drop_cached"),
]

# --- against real files


def random_call(random: Random, root: Path, handles: list[int]) -> tuple[str, tuple[object, ...]]:
    """A call; a handle is given as its place in `handles`."""

    def path() -> Path:
        return random.choice([root, root / "d", root / "d", root]) / random.choice(NAMES)

    name = random.choice(CALLS)
    if name in ("open", "create", "unlink", "exists", "listdir", "mkdir"):
        return name, (path(),)
    if name == "rename":
        source = path()
        return name, (source, source.with_name(random.choice(NAMES)))
    handle = random.randrange(len(handles)) if handles else 0
    at = random.choice([0, 5, 511, 512, 3000, 70_000])
    size = random.choice([0, 1, 600, 5000, 40_000])
    if name == "pwritev":
        parts = [bytes([random.choice([0, 65 + random.randrange(26)])]) * size, b"", b"end"]
        return name, (handle, parts[: random.randint(1, 3)], at)
    if name == "pread":
        return name, (handle, size, at)
    return name, (handle, at) if name == "truncate" else (handle,)


def result_of(
    fs: FileSystem, name: str, arguments: tuple[object, ...], handles: list[int]
) -> object:
    """What the call returns, or the errno that it raises."""
    if isinstance(arguments[0], int):
        if not handles:
            return None
        arguments = (handles[arguments[0]], *arguments[1:])
    try:
        if name in ("open", "create"):
            path = arguments[0]
            assert isinstance(path, Path)
            handles.append(fs.open(path, writable=True, create=name == "create"))
            return "opened"
        call: Callable[..., object] = getattr(fs, name)
        return call(*arguments)
    except OSError as error:
        return error.errno
    finally:
        if name == "close":
            handles.remove(arguments[0])  # type: ignore[arg-type]  # a handle, from `handles`


@pytest.mark.parametrize("seed", range(60))
def test_without_faults_it_behaves_as_real_files_do(seed: int, tmp_path: Path) -> None:
    random = Random(seed)
    disk, real = SimDisk(random), RealFileSystem()
    for path in reversed(tmp_path.parents[:-1]):
        disk.mkdir(path)
    disk.mkdir(tmp_path)
    for fs in (disk, real):
        fs.mkdir(tmp_path / "d")
    ours: list[int] = []
    theirs: list[int] = []
    for _ in range(250):
        name, arguments = random_call(random, tmp_path, ours)
        if name == "rename" and Path(str(arguments[0])).is_dir():
            continue
        expected = result_of(real, name, arguments, theirs)
        assert result_of(disk, name, arguments, ours) == expected, (name, arguments)
    for handle in theirs:
        real.close(handle)


# --- against a model


class ModelFile:
    """`versions`: the durable bytes, then the bytes after each change since."""

    def __init__(self, data: bytes = b"") -> None:
        self.versions = [data]
        self.was_cut = False

    def change(self, data: bytes) -> None:
        self.versions.append(data)

    def sync(self) -> None:
        del self.versions[:-1]
        self.was_cut = False

    def may_be(self, data: bytes, survival: Survival | None) -> bool:
        """True if `data` may be what a power loss left."""
        if survival is Survival.NONE:
            return data == self.versions[0]
        if survival is Survival.ALL or len(self.versions) == 1:
            return data == self.versions[-1]
        if survival is Survival.PREFIX:
            return any(data in mixtures(*pair) for pair in pairwise(self.versions))
        if survival is not None and not self.was_cut:
            return self._is_made_of_blocks(data, BLOCKS[survival])
        sizes = [len(version) for version in self.versions]
        return min(sizes) <= len(data) <= max(sizes) and all(
            any(value == byte_of(version, at) for version in self.versions)
            or (self.was_cut and value == 0)
            for at, value in enumerate(data)
        )

    def _is_made_of_blocks(self, data: bytes, size: int) -> bool:
        for at in range(0, len(data), size):
            block = data[at : at + size]
            if not any(
                v[at : at + len(block)].ljust(len(block), b"\0") == block for v in self.versions
            ):
                return False
        return True


def byte_of(data: bytes, at: int) -> int:
    return data[at] if at < len(data) else 0


def mixtures(before: bytes, after: bytes) -> list[bytes]:
    """`before` with a part of the write that made it `after`, up to a sector boundary."""
    boundaries = range(0, len(after) + SECTOR_BYTES, SECTOR_BYTES)
    return [before, *(after[:stop] + before[stop:] for stop in boundaries)]


class ModelDirectory:
    """`versions`: the durable names, then the names after each change since."""

    def __init__(self, names: dict[str, ModelFile | ModelDirectory] | None = None) -> None:
        self.versions = [names or {}]

    @property
    def names(self) -> dict[str, ModelFile | ModelDirectory]:
        return self.versions[-1]

    def change(
        self, gone: str, come: str = "", node: ModelFile | ModelDirectory | None = None
    ) -> None:
        names = dict(self.names)
        names.pop(gone, None)
        if node is not None:
            names[come] = node
        self.versions.append(names)

    def sync(self) -> None:
        del self.versions[:-1]


Node = ModelFile | ModelDirectory


def found(disk: SimDisk, path: Path, node: Node, survival: Survival | None) -> Node | None:
    """The model of what the disk has at `path`, durably; None if that can't have come from `node`."""
    if isinstance(node, ModelFile):
        if path not in disk.files():
            return None
        data = disk.contents(path)
        return ModelFile(data) if node.may_be(data, survival) else None
    if path in disk.files():
        return None
    listed = disk.listdir(path)
    versions = node.versions
    if survival in (Survival.NONE, Survival.ALL):
        versions = versions[:1] if survival is Survival.NONE else versions[-1:]
    for names in versions:
        children = {
            name: found(disk, path / name, names[name], survival)
            for name in listed
            if name in names
        }
        if sorted(names) == listed and None not in children.values():
            return ModelDirectory({name: child for name, child in children.items() if child})
    return None


class Comparison:
    """Random calls on a disk and its model."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.disk = SimDisk(Random(seed))
        self.root = ModelDirectory()

    def step(self) -> None:
        choice = self.random.random()
        if choice < 0.06:
            self.end_process()
        elif choice < 0.3:
            self.change_names()
        else:
            self.change_file()

    def end_process(self) -> None:
        if self.random.random() < 0.3:
            self.disk.crash()
            return
        survival = self.random.choice([None, *Survival])
        self.disk.power_loss(survival)
        after = found(self.disk, Path("/"), self.root, survival)
        assert isinstance(after, ModelDirectory), survival
        self.root = after

    def any_directory(self) -> tuple[Path, ModelDirectory]:
        path, directory = Path("/"), self.root
        while self.random.random() < 0.5:
            below = [
                n for n, node in sorted(directory.names.items()) if isinstance(node, ModelDirectory)
            ]
            if not below:
                break
            name = self.random.choice(below)
            node = directory.names[name]
            assert isinstance(node, ModelDirectory)
            path, directory = path / name, node
        return path, directory

    def change_names(self) -> None:
        path, directory = self.any_directory()
        name, other = self.random.choice(NAMES), self.random.choice(NAMES)
        node = directory.names.get(name)
        choice = self.random.random()
        if choice < 0.4:
            self.disk.fsync_directory(path)
            directory.sync()
        elif node is None and choice < 0.6:
            self.disk.mkdir(path / name)
            directory.change("", name, ModelDirectory())
        elif isinstance(node, ModelFile) and choice < 0.8:
            if not isinstance(directory.names.get(other), ModelDirectory):
                self.disk.rename(path / name, path / other)
                directory.change(name, other, node)
        elif isinstance(node, ModelFile):
            self.disk.unlink(path / name)
            directory.change(name)

    def change_file(self) -> None:
        path, directory = self.any_directory()
        name = self.random.choice(NAMES)
        node = directory.names.get(name)
        if isinstance(node, ModelDirectory):
            return
        handle = self.disk.open(path / name, writable=True, create=True)
        if node is None:
            node = ModelFile()
            directory.change("", name, node)
        choice = self.random.random()
        data = node.versions[-1]
        at = self.random.choice([0, len(data), self.random.randrange(3000)])
        if choice < 0.25:
            self.disk.fdatasync(handle)
            node.sync()
        elif choice < 0.4:
            self.disk.truncate(handle, at)
            node.change(data[:at].ljust(at, b"\0"))
            node.was_cut = True
        else:
            value = self.random.choice([0, self.random.randrange(256)])
            new = bytes([value]) * self.random.choice([1, 300, 512, 2000, 9000])
            assert self.disk.pwritev(handle, [new], at) == len(new)
            node.change(data[:at].ljust(at, b"\0") + new + data[at + len(new) :])
        size = self.disk.size(handle)
        begin = self.random.randrange(size + 1)
        assert self.disk.pread(handle, 2000, begin) == node.versions[-1][begin : begin + 2000]
        assert self.disk.pread(handle, size + 1, 0) == node.versions[-1]

    def check(self) -> None:
        used = self.compare(Path("/"), self.root)
        assert self.disk.used_bytes == used

    def compare(self, path: Path, directory: ModelDirectory) -> int:
        """All names and bytes; returns the sum of the sizes."""
        assert self.disk.listdir(path) == sorted(directory.names)
        used = 0
        for name, node in directory.names.items():
            if isinstance(node, ModelDirectory):
                used += self.compare(path / name, node)
            else:
                assert self.disk.contents(path / name) == node.versions[-1]
                used += len(node.versions[-1])
        return used


@pytest.mark.long
@pytest.mark.parametrize("seed", range(60))
def test_what_is_read_and_what_survives_is_what_the_model_allows(seed: int) -> None:
    comparison = Comparison(seed)
    for _ in range(150):
        comparison.step()
        comparison.check()
