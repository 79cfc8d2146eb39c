"""Hosts of the nodes: each with a network of its own, a disk of limited size, a clock that can be set.

With root each node gets a network namespace on a bridge and a small file system; links can be cut in one
direction. Without root all nodes share the loopback and the file system, and nothing can be cut or filled.
The wall clock of a node is moved by a library that is loaded ahead of the others, built with the C compiler.
"""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import struct
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.common import free_ports

PORT, HTTP_PORT = 9093, 8080
DISK_BYTES = 256 << 20
CLIENTS = 0
"""Number of the host on which clients run; nodes are numbered from 1."""
_NOWHERE = "02:00:00:00:00:01"
"""A hardware address that no interface has."""
_CLOCK_SOURCE = Path(__file__).with_name("clock_offset.c")


class Hosts(ABC):
    """One for each node of 1..count, and one for clients."""

    can_cut = False
    can_fill = False

    def __init__(self, folder: Path, count: int) -> None:
        self.folder = folder
        self.ids = range(1, count + 1)
        self._clock = _ClockLibrary.build(folder)

    @abstractmethod
    def address(self, node: int) -> str:
        """host:port of its listener."""

    @abstractmethod
    def http(self, node: int) -> str:
        """host:port of its HTTP pages."""

    def prefix(self, node: int) -> Sequence[str]:
        """Words before a command that run it on this host, in the same process."""
        return ()

    def disk(self, node: int) -> Path:
        """Its file system."""
        return self.folder / f"disk-{node}"

    def environ(self, node: int) -> dict[str, str]:
        """Environment of a process on this host."""
        return dict(os.environ) if self._clock is None else self._clock.environ(node)

    def cut(self, source: int, target: int) -> None:
        """Packets from one host to the other are lost; those that come back are not. Only where `can_cut`."""
        raise AssertionError("the caller has asked can_cut")

    def mend(self, source: int, target: int) -> None:
        """Lets packets from `source` arrive at `target` again. Only where `can_cut`."""
        raise AssertionError("the caller has asked can_cut")

    @property
    def can_set_clocks(self) -> bool:
        return self._clock is not None

    def set_clock(self, node: int, ahead_s: float) -> None:
        """Sets how many seconds the wall clock of the host is ahead."""
        assert self._clock is not None, "the caller has asked can_set_clocks"
        self._clock.set(node, ahead_s)

    def fill(self, node: int) -> None:
        """Leave no byte free on the disk."""
        with self._ballast(node).open("wb", buffering=0) as file:
            block = bytes(1 << 20)
            while block:
                try:
                    file.write(block)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    block = block[: len(block) // 2]

    def empty(self, node: int) -> None:
        """Give the space back."""
        self._ballast(node).unlink(missing_ok=True)

    def _ballast(self, node: int) -> Path:
        return self.disk(node) / "ballast"


class Loopback(Hosts):
    """For users without root."""

    def __init__(self, folder: Path, count: int) -> None:
        super().__init__(folder, count)
        ports = free_ports(2 * count)
        self._ports = dict(zip(self.ids, ports[:count], strict=True))
        self._http_ports = dict(zip(self.ids, ports[count:], strict=True))
        for node in self.ids:
            self.disk(node).mkdir(parents=True, exist_ok=True)

    def address(self, node: int) -> str:
        return f"127.0.0.1:{self._ports[node]}"

    def http(self, node: int) -> str:
        return f"127.0.0.1:{self._http_ports[node]}"


class Namespaces(Hosts):
    """See the module's docstring. The network is 10.213.N.0/24, with N from the process id."""

    can_cut = can_fill = True

    def __init__(self, folder: Path, count: int) -> None:
        super().__init__(folder, count)
        self._name = f"qc{os.getpid() % 100_000}"
        self._network = f"10.213.{os.getpid() % 250 + 1}"

    def open(self) -> None:
        """Make networks and disks. Raises CalledProcessError where that is not allowed."""
        _run("ip", "link", "add", self._name, "type", "bridge")
        _run("ip", "address", "add", f"{self._ip(CLIENTS)}/24", "dev", self._name)
        _run("ip", "link", "set", self._name, "up")
        for node in self.ids:
            space, end = self._space(node), self._link(node)
            _run("ip", "netns", "add", space)
            _run("ip", "link", "add", end, "type", "veth", "peer", "name", "eth0", "netns", space)
            _run("ip", "link", "set", end, "master", self._name, "up")
            _run("ip", "-n", space, "address", "add", f"{self._ip(node)}/24", "dev", "eth0")
            _run("ip", "-n", space, "link", "set", "eth0", "up")
            _run("ip", "-n", space, "link", "set", "lo", "up")
            self.disk(node).mkdir(parents=True, exist_ok=True)
            size = f"size={DISK_BYTES}"
            _run("mount", "-t", "tmpfs", "-o", size, f"{self._name}-{node}", self.disk(node))

    def close(self) -> None:
        """Remove what `open` has made, as far as it came."""
        for node in self.ids:
            if self.disk(node).is_mount():
                _try("umount", "--lazy", self.disk(node))
            _try("ip", "link", "delete", self._link(node))
            _try("ip", "netns", "delete", self._space(node))
        _try("ip", "link", "delete", self._name)

    def address(self, node: int) -> str:
        return f"{self._ip(node)}:{PORT}"

    def http(self, node: int) -> str:
        return f"{self._ip(node)}:{HTTP_PORT}"

    def prefix(self, node: int) -> Sequence[str]:
        return ("nsenter", f"--net=/run/netns/{self._space(node)}")

    def cut(self, source: int, target: int) -> None:
        wrong = (self._ip(target), "lladdr", _NOWHERE, "nud", "permanent")
        _run("ip", *self._inside(source), "neighbour", "replace", *wrong, *self._device(source))

    def mend(self, source: int, target: int) -> None:
        where = (self._ip(target), *self._device(source))
        _try("ip", *self._inside(source), "neighbour", "delete", *where)

    def _inside(self, host: int) -> tuple[str, ...]:
        return () if host == CLIENTS else ("-n", self._space(host))

    def _device(self, host: int) -> tuple[str, str]:
        return ("dev", self._name if host == CLIENTS else "eth0")

    def _ip(self, host: int) -> str:
        return f"{self._network}.{254 if host == CLIENTS else host}"

    def _link(self, node: int) -> str:
        return f"{self._name}v{node}"

    def _space(self, node: int) -> str:
        return f"{self._name}n{node}"


class _ClockLibrary:
    """Adds to the wall clock of each process what a file says, in nanoseconds."""

    def __init__(self, library: Path, folder: Path) -> None:
        self._library = library
        self._folder = folder

    @classmethod
    def build(cls, folder: Path) -> _ClockLibrary | None:
        """None where there is no C compiler."""
        compiler = shutil.which("cc")
        if compiler is None:
            return None
        library = folder / "clock_offset.so"
        _run(compiler, "-O2", "-shared", "-fPIC", "-o", library, _CLOCK_SOURCE, "-ldl")
        return cls(library, folder)

    def environ(self, node: int) -> dict[str, str]:
        path = self._path(node)
        if not path.exists():
            path.write_bytes(bytes(8))
        own = {"LD_PRELOAD": str(self._library), "CLOCK_OFFSET_FILE": str(path)}
        return {**os.environ, **own}

    def set(self, node: int, ahead_s: float) -> None:
        with self._path(node).open("r+b") as file, mmap.mmap(file.fileno(), 8) as shared:
            shared[:] = struct.pack("=q", int(ahead_s * 1e9))

    def _path(self, node: int) -> Path:
        return self._folder / f"clock-{node}"


@contextmanager
def made_hosts(folder: Path, count: int) -> Iterator[Hosts]:
    """Namespaces where they can be had, else the loopback."""
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("nsenter") is None:
        yield Loopback(folder, count)
        return
    hosts = Namespaces(folder, count)
    with ExitStack() as stack:
        stack.callback(hosts.close)
        try:
            hosts.open()
        except subprocess.CalledProcessError as error:
            stack.close()
            print(f"no namespaces here ({error.stderr.strip()}): the loopback is used")
            yield Loopback(folder, count)
            return
        yield hosts


def _run(*command: object) -> None:
    subprocess.run([*map(str, command)], check=True, capture_output=True, text=True)


def _try(*command: object) -> None:
    subprocess.run([*map(str, command)], check=False, capture_output=True)
