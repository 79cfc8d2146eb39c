"""Keys, certificates, CAs and revocation lists change without a restart: their files are watched.

A new set is read and checked whole in a thread before it counts. A bad one, or one that is half written,
changes nothing, and is tried again until it is mended. Files are watched by stat: Kubernetes replaces a
symbolic link above them, which no watch of the file itself would notice.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import NamedTuple, Protocol

from quorumd.config.errors import BadValue
from quorumd.config.regular_file import read_regular_file
from quorumd.config.tls_port import TlsPort
from quorumd.security.errors import CertificateProblem, UnusableMaterial
from quorumd.security.material import Material, read_material

CHECK_S = 5.0
"""Between two checks of the files."""
SLOW_S = 10.0
"""A check that takes longer is a problem, which is told."""

# By path: device, inode, size, times of modification and of change; None where there is no such file.
_Stamp = tuple[tuple[int, ...] | None, ...]


class Renewable(Protocol):
    """`security.credentials.Credentials`, as far as they are renewed."""

    @property
    def material(self) -> Material: ...

    def prepare(self, material: Material) -> Callable[[], None]:
        """A call that makes new connections use `material`, and cannot fail. Raises CertificateProblem."""


class Outcome(Enum):
    """The outcome of a check of the files."""

    SAME = "same"
    UNSETTLED = "unsettled"
    """Something is different, and may be half written: the next check decides."""
    BAD = "bad"
    LOADED = "loaded"


class ReloadResult(NamedTuple):
    """The result of checking a set of files."""

    outcome: Outcome
    problems: tuple[str, ...] = ()
    """Reasons why the set on disk is not used; of BAD."""
    content: bytes = b""
    """Distinguishes one bad set from another."""
    has_new_trust: bool = False
    """Another CA is trusted, or other certificates are revoked; of LOADED."""


class _Unsound(Exception):
    """A set that is not used, and why."""

    def __init__(self, problems: tuple[str, ...]) -> None:
        super().__init__()
        self.problems = problems


class WatcherOwner(Protocol):
    """The observer of reloads, on the event loop's thread."""

    def on_loaded(self, name: str, has_new_trust: bool) -> None:
        """A new set is in use. With another CA, or another revocation list, open connections are old."""

    def on_bad(self, name: str, problems: Sequence[str], is_news: bool) -> None:
        """The set on disk is not used; the one before is. `is_news` once for each content."""

    def on_mended(self, name: str) -> None:
        """The files hold again what is in use."""


@dataclass(slots=True)
class WatchedSet:
    """The files of one side, and what is made of them. `reload` is for a thread."""

    port: TlsPort
    users: Sequence[Renewable]
    """All of them have this material."""
    check: Callable[[Material], Sequence[tuple[str, str]]]
    """Finds the faults of a set: key of the configuration, and text."""
    problems: tuple[str, ...] = ()
    """Reasons why the set on disk is not used; empty if it is."""
    _used: _Stamp | None = None
    """Of the set that is in use; None if it has to be read to know."""
    _seen: _Stamp | None = None
    _reported: bytes = b""
    """The content of the bad set that is on disk; empty if it is in use."""
    _paths: tuple[Path, ...] = field(init=False)

    def __post_init__(self) -> None:
        self._paths = self.port.files
        self._seen = self._stamp()

    def reload(self, *, at_once: bool) -> ReloadResult:
        """Read what is new, and use it if it is sound. `at_once` takes it for whole as it is."""
        stamp = self._stamp()
        if stamp == self._used:
            self._seen = stamp
            return ReloadResult(Outcome.SAME)
        if stamp != self._seen and not at_once:
            self._seen = stamp
            return ReloadResult(Outcome.UNSETTLED)
        try:
            material = self._read()
            if self._stamp() != stamp:
                # The set was read while it was written.
                return ReloadResult(Outcome.UNSETTLED)
            found = self._use(material)
        except _Unsound as error:
            found = ReloadResult(Outcome.BAD, error.problems, self._content())
        self._seen = stamp
        # A file that is written twice within one tick of its clock does not show it.
        is_sure = found.outcome is not Outcome.BAD and not at_once
        self._used = stamp if is_sure else None
        return found

    def _read(self) -> Material:
        """The set that is on disk. Raises _Unsound."""
        try:
            material = read_material(self.port.read())
            problems = _texts(self.check(material))
            if not problems:
                return material
        except UnusableMaterial as error:
            problems = _texts(error.problems)
        except (BadValue, CertificateProblem) as error:
            problems = (str(error),)
        except Exception as error:  # whatever is in the files, those in use stay, and are watched
            raise _Unsound((_unchecked(error),)) from error
        raise _Unsound(problems)

    def _use(self, material: Material) -> ReloadResult:
        """Raises _Unsound, and changes nothing then."""
        before = [user.material for user in self.users]
        if all(material == each for each in before):
            return ReloadResult(Outcome.SAME)
        try:
            prepared = [user.prepare(material) for user in self.users]
        except CertificateProblem as problem:
            raise _Unsound((str(problem),)) from problem
        for use in prepared:
            use()
        return ReloadResult(
            Outcome.LOADED, has_new_trust=any(_trusts_others(material, b) for b in before)
        )

    def note(self, found: ReloadResult) -> bool:
        """Keep why the set on disk is not used, or that it is. Returns True if it is bad in a new way."""
        is_news = found.outcome is Outcome.BAD and found.content != self._reported
        self.problems, self._reported = found.problems, found.content
        return is_news

    def _stamp(self) -> _Stamp:
        return tuple(map(_stamp_of, self._paths))

    def _content(self) -> bytes:
        digest = hashlib.sha256()
        for path in self._paths:
            with contextlib.suppress(OSError):
                digest.update(hashlib.sha256(read_regular_file(path)).digest())
            digest.update(b"\n")
        return digest.digest()


class Watcher:
    """Checks each set in a task of its own: a file system that hangs holds up no other set.

    Belongs to the event loop's thread.
    """

    def __init__(self, sets: Sequence[WatchedSet], owner: WatcherOwner) -> None:
        """Nothing is checked before `open`."""
        self.sets = tuple(sets)
        self._owner = owner
        self._is_asked = tuple(asyncio.Event() for _ in self.sets)
        self._tasks: list[asyncio.Task[None]] = []

    def open(self) -> None:
        """Begin to check, every CHECK_S."""
        loop = asyncio.get_running_loop()
        for watched, is_asked in zip(self.sets, self._is_asked, strict=True):
            task = loop.create_task(self._watch(watched, is_asked), name="certificates")
            self._tasks.append(task)

    def close(self) -> None:
        """Check no more."""
        for task in self._tasks:
            task.cancel()

    def reload_now(self) -> None:
        """Check at once: the files are written whole."""
        for is_asked in self._is_asked:
            is_asked.set()

    async def _watch(self, watched: WatchedSet, is_asked: asyncio.Event) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CHECK_S):
                    await is_asked.wait()
            at_once = is_asked.is_set()
            is_asked.clear()
            result = _reload_in_thread(watched, at_once)
            await asyncio.wait([result], timeout=SLOW_S)
            if not result.done():
                paths = ", ".join(map(str, dict.fromkeys(watched.port.files)))
                self._report(
                    watched,
                    _bad(f"the check goes on for more than {SLOW_S:.0f} s: can {paths} be read?"),
                )
            self._report(watched, await result)

    def _report(self, watched: WatchedSet, found: ReloadResult) -> None:
        if found.outcome is Outcome.UNSETTLED:
            return
        name, was_bad = watched.port.name, bool(watched.problems)
        is_news = watched.note(found)
        if found.outcome is Outcome.BAD:
            self._owner.on_bad(name, found.problems, is_news)
        elif found.outcome is Outcome.LOADED:
            self._owner.on_loaded(name, found.has_new_trust)
        elif was_bad:
            self._owner.on_mended(name)


def _reload_in_thread(watched: WatchedSet, at_once: bool) -> asyncio.Future[ReloadResult]:
    """Not in a pool: the end of the process would wait for a file system that hangs."""
    loop = asyncio.get_running_loop()
    result: asyncio.Future[ReloadResult] = loop.create_future()

    def settle(found: ReloadResult) -> None:
        if not result.cancelled():
            result.set_result(found)

    def run() -> None:
        try:
            found = watched.reload(at_once=at_once)
        except Exception as error:  # such as a lack of memory: checked again later
            found = _bad(_unchecked(error))
        with contextlib.suppress(RuntimeError):  # the loop is closed: the process ends
            loop.call_soon_threadsafe(settle, found)

    try:
        threading.Thread(target=run, name="certificates", daemon=True).start()
    except RuntimeError as error:  # a lack of threads: checked again later
        settle(_bad(_unchecked(error)))
    return result


def _bad(text: str) -> ReloadResult:
    return ReloadResult(Outcome.BAD, (text,), text.encode())


def _unchecked(error: Exception) -> str:
    return f"cannot be checked: {type(error).__name__}: {error}"


def _texts(problems: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    return tuple(f"{key}: {text}" for key, text in problems)


def _stamp_of(path: Path) -> tuple[int, ...] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _trusts_others(one: Material, other: Material) -> bool:
    """True if they differ in more than this side's own certificate."""
    return replace(one, chain=()) != replace(other, chain=())
