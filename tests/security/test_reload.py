"""Files of keys and certificates are watched: sound new ones are used, and only those."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption
from cryptography.hazmat.primitives.serialization.pkcs12 import serialize_key_and_certificates

from quorumd.config.load import load
from quorumd.config.tls import ClientAuth, TlsConfig
from quorumd.config.tls_port import TlsPort
from quorumd.security import reload
from quorumd.security.credentials import Credentials
from quorumd.security.errors import CertificateProblem
from quorumd.security.material import Material, read_material
from quorumd.security.reload import Outcome, ReloadResult, WatchedSet, Watcher
from tests.support.config_files import writer_into
from tests.support.odd_certificates import Authority, key_pem


@pytest.fixture(scope="module")
def ca() -> trustme.CA:
    return trustme.CA()


def write(path: Path, data: bytes) -> None:
    """Replace a file, as those do who do it well."""
    new = path.with_suffix(".new")
    new.write_bytes(data)
    new.rename(path)


def leaf(ca: trustme.CA, name: str) -> bytes:
    made = ca.issue_cert("localhost", common_name=name)
    chain = b"".join(each.bytes() for each in made.cert_chain_pems)
    return bytes(made.private_key_pem.bytes() + chain)


def name_of(side: Credentials) -> str:
    return side.material.chain[0].subject.rfc4514_string().partition(",")[0]


@dataclass
class Files:
    """Two sides that are made of the same files, and what watches them."""

    folder: Path
    tls: TlsConfig
    sides: list[Credentials]
    watched: WatchedSet

    @property
    def store(self) -> Path:
        return self.folder / "node.pem"

    @property
    def trust(self) -> Path:
        return self.folder / "ca.pem"

    def name(self) -> str:
        names = {name_of(side) for side in self.sides}
        assert len(names) == 1
        return names.pop()


@pytest.fixture
def files(tmp_path: Path, ca: trustme.CA) -> Files:
    store, trust = tmp_path / "node.pem", tmp_path / "ca.pem"
    write(store, leaf(ca, "first"))
    write(trust, ca.cert_pem.bytes())
    tls = TlsConfig(
        ssl_keystore_location=store,
        ssl_truststore_location=trust,
        ssl_client_auth=ClientAuth.REQUIRED,
    )
    sides = [Credentials(tls, is_server=True), Credentials(tls, is_server=False)]
    return Files(tmp_path, tls, sides, WatchedSet(TlsPort("SECURE", "", tls), sides, sound))


def sound(material: Material) -> list[tuple[str, str]]:
    del material
    return []


def outcomes(files: Files, count: int = 2) -> list[Outcome]:
    return [files.watched.reload(at_once=False).outcome for _ in range(count)]


def test_a_new_certificate_is_used_once_two_checks_agree(files: Files, ca: trustme.CA) -> None:
    assert outcomes(files) == [Outcome.SAME, Outcome.SAME]
    write(files.store, leaf(ca, "second"))
    assert outcomes(files, 1) == [Outcome.UNSETTLED]
    assert files.name() == "CN=first"
    found = files.watched.reload(at_once=False)
    assert (found.outcome, found.has_new_trust) == (Outcome.LOADED, False)
    assert files.name() == "CN=second"
    assert outcomes(files) == [Outcome.SAME, Outcome.SAME]


def test_what_changed_between_reading_and_watching_is_seen(files: Files, ca: trustme.CA) -> None:
    write(files.store, leaf(ca, "second"))
    watched = WatchedSet(TlsPort("SECURE", "", files.tls), files.sides, sound)
    assert watched.reload(at_once=False).outcome is Outcome.LOADED
    assert files.name() == "CN=second"


def test_trust_is_new_if_it_is_to_any_who_use_it(files: Files, ca: trustme.CA) -> None:
    """The files may be replaced while a node that starts reads them."""
    write(files.trust, ca.cert_pem.bytes() + trustme.CA().cert_pem.bytes())
    files.sides[0].prepare(read_material(files.tls))()
    found = files.watched.reload(at_once=True)
    assert (found.outcome, found.has_new_trust) == (Outcome.LOADED, True)


def test_who_asks_has_written_them_whole(files: Files, ca: trustme.CA) -> None:
    write(files.store, leaf(ca, "second"))
    assert files.watched.reload(at_once=True).outcome is Outcome.LOADED
    assert files.name() == "CN=second"


@pytest.mark.pure
def test_what_is_written_again_within_a_tick_of_the_file_systems_clock_is_seen(
    files: Files, ca: trustme.CA, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asks may do so between two writes."""
    stamp = (1, 1, 1, 1, 1)
    monkeypatch.setattr(reload, "_stamp_of", lambda path: stamp)
    write(files.store, leaf(ca, "second"))
    assert files.watched.reload(at_once=True).outcome is Outcome.LOADED
    write(files.store, leaf(ca, "third"))
    assert files.watched.reload(at_once=False).outcome is Outcome.LOADED
    assert files.name() == "CN=third"


@pytest.mark.pure
def test_a_change_that_comes_again_after_it_was_taken_back_is_not_settled(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert outcomes(files) == [Outcome.SAME, Outcome.SAME]
    stamp_of = reload._stamp_of
    first = stamp_of(files.store)
    second = (1, 1, 1, 1, 1)
    for stamp in (second, first, second):
        changed = {files.store: stamp}
        monkeypatch.setattr(
            reload, "_stamp_of", lambda path, at=changed: at.get(path) or stamp_of(path)
        )
        found = files.watched.reload(at_once=False)
        assert found.outcome is (Outcome.SAME if stamp == first else Outcome.UNSETTLED)


def test_another_ca_is_new_trust(files: Files, ca: trustme.CA) -> None:
    write(files.trust, ca.cert_pem.bytes() + trustme.CA().cert_pem.bytes())
    found = files.watched.reload(at_once=True)
    assert (found.outcome, found.has_new_trust) == (Outcome.LOADED, True)


def test_another_revocation_list_is_new_trust(tmp_path: Path) -> None:
    """Open connections may be of those whose certificate it revokes."""
    authority = Authority()
    store, trust, crl = (tmp_path / name for name in ("node.pem", "ca.pem", "crl.pem"))
    authority.issue().write(store)
    write(trust, authority.pem)
    write(crl, authority.crl())
    tls = TlsConfig(
        ssl_keystore_location=store, ssl_truststore_location=trust, ssl_crl_location=crl
    )
    side = Credentials(tls, is_server=True)
    watched, before = WatchedSet(TlsPort("SECURE", "", tls), [side], sound), side.trust
    write(crl, authority.crl(authority.issue("stolen"), number=2))
    found = watched.reload(at_once=True)
    assert (found.outcome, found.has_new_trust) == (Outcome.LOADED, True)
    assert side.trust != before


def test_a_file_that_is_overwritten_and_given_its_old_time_is_seen(files: Files) -> None:
    """As by `cp --preserve`, or `rsync --inplace`."""
    assert outcomes(files) == [Outcome.SAME, Outcome.SAME]
    before = files.store.stat()
    data = files.store.read_bytes()
    files.store.write_bytes(data[:-60] + data[-60:].swapcase())
    os.utime(files.store, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert outcomes(files) == [Outcome.UNSETTLED, Outcome.BAD]


def test_a_symbolic_link_that_is_replaced_above_the_file_is_seen(
    tmp_path: Path, ca: trustme.CA
) -> None:
    """As Kubernetes replaces a secret: `..data` points to a new folder, the links to it stay."""
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "node.pem").write_bytes(leaf(ca, folder))
    (tmp_path / "..data").symlink_to("one")
    store = tmp_path / "node.pem"
    store.symlink_to("..data/node.pem")
    tls = TlsConfig(
        ssl_keystore_location=store, ssl_truststore_certificates=ca.cert_pem.bytes().decode()
    )
    side = Credentials(tls, is_server=True)
    watched = WatchedSet(TlsPort("SECURE", "", tls), [side], sound)
    assert watched.reload(at_once=False).outcome is Outcome.SAME
    (tmp_path / "..new").symlink_to("two")
    (tmp_path / "..new").rename(tmp_path / "..data")
    assert watched.reload(at_once=False).outcome is Outcome.UNSETTLED
    assert watched.reload(at_once=False).outcome is Outcome.LOADED
    assert name_of(side) == "CN=two"


def test_keys_certificates_and_passwords_behind_references_are_watched(tmp_path: Path) -> None:
    """All that is in files of `${dir:...}`; for HTTP, the password of a keystore."""
    authority, secrets = Authority(), tmp_path / "secrets"
    secrets.mkdir()

    def put(name: str) -> None:
        node = authority.issue(name, ["db1"])
        write(secrets / "key", key_pem(node.key, password=name))
        write(secrets / "password", f"{name}\n".encode())
        write(secrets / "chain", node.chain_pem)
        encrypted = BestAvailableEncryption(name.encode())
        store = serialize_key_and_certificates(None, node.key, node.certificate, None, encrypted)
        write(tmp_path / "http.p12", store)

    put("first")
    write(secrets / "ca", authority.pem)
    password = "listener.name.controller.ssl.key.password", "http.ssl.keystore.password"
    keys = {
        "http.listen": "db1:8080",
        "http.security.protocol": "SSL",
        "http.ssl.keystore.type": "PKCS12",
        "http.ssl.keystore.location": "http.p12",
        "listener.security.protocol.map": "CONTROLLER:SSL",
        "listener.name.controller.ssl.keystore.key": "${dir:secrets:key}",
        "listener.name.controller.ssl.keystore.certificate.chain": "${dir:secrets:chain}",
        "ssl.truststore.certificates": "${dir:secrets:ca}",
        "ssl.client.auth": "required",
        **dict.fromkeys(password, "${dir:secrets:password}"),
    }
    ports = load(writer_into(tmp_path)(keys), {}).tls_ports
    sides = [Credentials(port.tls, is_server=True) for port in ports]
    sets = [WatchedSet(port, [side], sound) for port, side in zip(ports, sides, strict=True)]

    def results() -> list[ReloadResult]:
        return [each.reload(at_once=True) for each in sets]

    assert [found.outcome for found in results()] == [Outcome.SAME] * 2
    put("second")
    assert [found.outcome for found in results()] == [Outcome.LOADED] * 2
    assert [name_of(side) for side in sides] == ["CN=second"] * 2
    write(secrets / "ca", authority.pem + Authority("another").pem)
    assert [found.has_new_trust for found in results()] == [True] * 2
    (secrets / "password").unlink()
    assert [found.problems for found in results()] == [
        (
            f"{key}: {secrets / 'password'} cannot be read (No such file or directory): check the path and "
            "its permissions",
        )
        for key in password
    ]
    assert [name_of(side) for side in sides] == ["CN=second"] * 2


@pytest.mark.parametrize("damage", ["cut", "empty", "gone", "pipe", "key of another"])
def test_a_bad_set_changes_nothing_until_it_is_mended(
    files: Files, ca: trustme.CA, damage: str
) -> None:
    good, other = leaf(ca, "second"), leaf(ca, "other")
    key, end = good[: good.index(b"-----BEGIN CERT")], good[good.index(b"-----BEGIN CERT") :]
    if damage in ("gone", "pipe"):
        files.store.unlink()
        if damage == "pipe":
            os.mkfifo(files.store)
    else:
        bad = {"cut": good[:-300], "empty": b"", "key of another": key + other[len(key) :]}[damage]
        write(files.store, bad)
    found = files.watched.reload(at_once=True)
    assert found.outcome is Outcome.BAD
    assert found.problems
    assert files.name() == "CN=first"
    # It is tried again, and is news once.
    again = files.watched.reload(at_once=False)
    assert again.outcome is Outcome.BAD
    assert [files.watched.note(each) for each in (found, again)] == [True, False]
    write(files.store, key + end)
    assert outcomes(files) == [Outcome.UNSETTLED, Outcome.LOADED]
    assert files.name() == "CN=second"


def test_no_side_is_renewed_if_one_of_them_cannot_be(files: Files, ca: trustme.CA) -> None:
    class Stubborn(Credentials):
        is_stubborn = False

        def prepare(self, material: Material) -> Callable[[], None]:
            if self.is_stubborn:
                raise CertificateProblem("not this one")
            return super().prepare(material)

    stubborn = Stubborn(files.tls, is_server=False)
    stubborn.is_stubborn = True
    files.watched = WatchedSet(TlsPort("SECURE", "", files.tls), [files.sides[0], stubborn], sound)
    write(files.store, leaf(ca, "second"))
    found = files.watched.reload(at_once=True)
    assert (found.outcome, found.problems) == (Outcome.BAD, ("not this one",))
    assert [name_of(files.sides[0]), name_of(stubborn)] == ["CN=first", "CN=first"]


@pytest.mark.parametrize("call", [1, 2, 3, 4])
def test_a_host_without_descriptors_or_memory_keeps_the_old_set_and_is_asked_again(
    files: Files, ca: trustme.CA, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    """Each side hands OpenSSL its keys and its CAs by two files in memory."""
    calls = count(1)

    def memfd_create(name: str, flags: int) -> int:
        if next(calls) >= call:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return real(name, flags)

    real = os.memfd_create
    write(files.store, leaf(ca, "second"))
    with monkeypatch.context() as patch:
        patch.setattr(os, "memfd_create", memfd_create)
        found = files.watched.reload(at_once=True)
        assert found.outcome is Outcome.BAD
        assert "Too many open files" in found.problems[0]
        assert files.name() == "CN=first"
    assert outcomes(files) == [Outcome.LOADED, Outcome.SAME]
    assert files.name() == "CN=second"


def test_a_file_that_grows_while_it_is_read_is_read_again(files: Files, ca: trustme.CA) -> None:
    late = leaf(ca, "late")

    def check(material: Material) -> list[tuple[str, str]]:
        if files.store.read_bytes() != late:
            write(files.store, late)
        return []

    files.watched = WatchedSet(TlsPort("SECURE", "", files.tls), files.sides, check)
    write(files.store, leaf(ca, "second"))
    assert files.watched.reload(at_once=True).outcome is Outcome.UNSETTLED
    assert files.name() == "CN=first"
    assert outcomes(files) == [Outcome.UNSETTLED, Outcome.LOADED]


def test_what_the_check_finds_is_told_and_a_check_that_fails_ends_nothing(
    files: Files, ca: trustme.CA
) -> None:
    def check(material: Material) -> list[tuple[str, str]]:
        raise RuntimeError("no such luck")

    watched = WatchedSet(
        TlsPort("SECURE", "", files.tls),
        files.sides,
        lambda _: [("ssl.keystore.location", "expired 2 h ago")],
    )
    write(files.store, leaf(ca, "second"))
    assert watched.reload(at_once=True).problems == ("ssl.keystore.location: expired 2 h ago",)
    watched.check = check
    assert watched.reload(at_once=True).problems == (
        "cannot be checked: RuntimeError: no such luck",
    )
    assert files.name() == "CN=first"


@dataclass
class Told:
    """What a watcher tells."""

    lines: list[str] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def on_loaded(self, name: str, has_new_trust: bool) -> None:
        self._note(f"{name} loaded{' with new trust' if has_new_trust else ''}")

    def on_bad(self, name: str, problems: Sequence[str], is_news: bool) -> None:
        self._note(f"{name} bad{', news' if is_news else ''}")

    def on_mended(self, name: str) -> None:
        self._note(f"{name} mended")

    def _note(self, line: str) -> None:
        self.lines.append(line)
        self.changed.set()

    async def next(self) -> str:
        async with asyncio.timeout(20):
            while not self.lines:
                self.changed.clear()
                await self.changed.wait()
        return self.lines.pop(0)


def test_a_watcher_tells_what_it_sees(
    files: Files, ca: trustme.CA, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reload, "CHECK_S", 0.05)
    good = files.store.read_bytes()

    async def run() -> None:
        told = Told()
        watcher = Watcher([files.watched], told)
        watcher.open()
        write(files.store, leaf(ca, "second"))
        assert await told.next() == "SECURE loaded"
        write(files.store, b"")
        assert await told.next() == "SECURE bad, news"
        assert await told.next() == "SECURE bad"
        assert watcher.sets[0].problems
        write(files.store, good)
        while (line := await told.next()) == "SECURE bad":
            pass
        assert line == "SECURE loaded"
        assert files.name() == "CN=first"
        assert not watcher.sets[0].problems
        files.store.unlink()
        assert await told.next() == "SECURE bad, news"
        write(files.store, good)
        while (line := await told.next()) == "SECURE bad":
            pass
        assert line == "SECURE mended"
        watcher.close()

    asyncio.run(run())


def held_up(watched: WatchedSet, wait_s: float) -> threading.Event:
    """Its check waits for this event, and fails after so long."""
    let = threading.Event()

    def check(material: Material) -> list[tuple[str, str]]:
        assert let.wait(wait_s)
        return []

    watched.check = check
    return let


def test_who_asks_need_not_wait_and_the_loop_goes_on_meanwhile(
    files: Files, ca: trustme.CA, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reload, "CHECK_S", 3600.0)
    let = held_up(files.watched, 20)

    async def run() -> None:
        told = Told()
        watcher = Watcher([files.watched], told)
        watcher.open()
        write(files.store, leaf(ca, "second"))
        watcher.reload_now()
        for _ in range(5):
            await asyncio.sleep(0.01)
        assert told.lines == []
        let.set()
        assert await told.next() == "SECURE loaded"
        watcher.close()

    asyncio.run(run())


def test_a_check_that_cannot_be_made_is_reported_and_made_again(
    files: Files, ca: trustme.CA, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reload, "CHECK_S", 0.05)
    real = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def run() -> None:
        told = Told()
        watcher = Watcher([files.watched], told)
        monkeypatch.setattr(threading.Thread, "start", start)
        watcher.open()
        assert await told.next() == "SECURE bad, news"
        assert files.watched.problems == (
            "cannot be checked: RuntimeError: can't start new thread",
        )
        assert await told.next() == "SECURE bad"
        write(files.store, leaf(ca, "second"))
        monkeypatch.setattr(threading.Thread, "start", real)
        while (line := await told.next()) == "SECURE bad":
            pass
        assert line in ("SECURE mended", "SECURE loaded")
        if line == "SECURE mended":
            assert await told.next() == "SECURE loaded"
        watcher.close()

    asyncio.run(run())
    assert not files.watched.problems
    assert files.name() == "CN=second"


def test_a_check_that_hangs_is_told_and_holds_up_nothing_else(
    files: Files, ca: trustme.CA, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reload, "CHECK_S", 3600.0)
    monkeypatch.setattr(reload, "SLOW_S", 0.05)
    side = Credentials(files.tls, is_server=True)
    other = WatchedSet(TlsPort("OTHER", "", files.tls), [side], sound)
    let = held_up(files.watched, 60)

    async def run() -> None:
        told = Told()
        watcher = Watcher([files.watched, other], told)
        watcher.open()
        write(files.store, leaf(ca, "second"))
        watcher.reload_now()
        assert sorted([await told.next(), await told.next()]) == [
            "OTHER loaded",
            "SECURE bad, news",
        ]
        (problem,) = files.watched.problems
        assert f"can {files.store}, {files.trust} be read?" in problem
        let.set()
        assert await told.next() == "SECURE loaded"
        assert not files.watched.problems
        watcher.close()

    asyncio.run(run())


def test_a_check_that_hangs_does_not_hold_up_the_end(
    files: Files, ca: trustme.CA, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reload, "CHECK_S", 3600.0)
    hung: list[threading.Thread] = []
    begun, let = threading.Event(), threading.Event()

    def check(material: Material) -> list[tuple[str, str]]:
        hung.append(threading.current_thread())
        begun.set()
        assert let.wait(60)
        return []

    files.watched.check = check

    async def run() -> None:
        watcher = Watcher([files.watched], Told())
        watcher.open()
        write(files.store, leaf(ca, "second"))
        watcher.reload_now()
        assert await asyncio.to_thread(begun.wait, 60)
        watcher.close()

    asyncio.run(run())
    (thread,) = hung
    assert thread.is_alive()
    assert thread.daemon
    let.set()
    thread.join()


def test_times_alone_are_no_news(files: Files) -> None:
    os.utime(files.store)
    assert outcomes(files) == [Outcome.UNSETTLED, Outcome.SAME]
    told = Told()
    Watcher([files.watched], told)._report(files.watched, ReloadResult(Outcome.SAME))
    assert told.lines == []


def test_each_other_set_that_is_bad_is_news(files: Files) -> None:
    news = []
    for content in (b"one", b"one", b"another"):
        write(files.store, content)
        news.append(files.watched.note(files.watched.reload(at_once=True)))
    assert news == [True, False, True]


def test_who_asks_once_has_them_read_once(
    files: Files, ca: trustme.CA, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reload, "CHECK_S", 3600.0)
    read = 0
    check = WatchedSet.reload

    def counted(watched: WatchedSet, *, at_once: bool) -> reload.ReloadResult:
        nonlocal read
        read += 1
        return check(watched, at_once=at_once)

    monkeypatch.setattr(WatchedSet, "reload", counted)

    async def run() -> None:
        told = Told()
        watcher = Watcher([files.watched], told)
        watcher.open()
        write(files.store, leaf(ca, "second"))
        watcher.reload_now()
        assert await told.next() == "SECURE loaded"
        await asyncio.sleep(0.2)
        assert read == 1
        watcher.close()

    asyncio.run(run())
