"""The client over TLS, against nodes on real sockets: who is refused, and what it is told."""

from __future__ import annotations

import asyncio
import datetime
import os
import pickle
import ssl
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import uvloop

from quorumd import (
    AppendFailed,
    CertificateProblem,
    ConfigError,
    KeyValueView,
    PeerSpeaksPlaintext,
    QuorumAdmin,
    QuorumClient,
    QuorumUnavailable,
    Record,
    Security,
)
from quorumd.client.errors import ConnectionFailed
from quorumd.config.tls import TlsConfig
from quorumd.wire.messages.produce import ProduceRequest
from quorumd.wire.schema import Message
from tests.quorumd.fake_quorum import FakeQuorum
from tests.support.authority import HOSTS
from tests.support.client_files import PASSWORD, ClientFiles
from tests.support.odd_certificates import Authority

Run = Callable[[Awaitable[None]], None]
LOOPS = {"asyncio": asyncio.run, "uvloop": uvloop.run}
AN_HOUR = datetime.timedelta(hours=1)
# Far above what a refusal takes, and far below the client's timeout.
AT_ONCE_S = 8.0
TIMEOUT_MS = 60_000
BARRED_S = 4.0
"""How long a leader that cannot be used is tried again."""


@pytest.fixture
def files(tmp_path: Path) -> ClientFiles:
    return ClientFiles(tmp_path)


def security_of(keys: dict[str, object]) -> Security:
    return Security.from_pairs({name: str(value) for name, value in keys.items()}, "here")


def secured_quorum(files: ClientFiles, *nodes: int, hosts: tuple[str, ...] = HOSTS) -> FakeQuorum:
    """Three nodes; those named (none: all) speak TLS and ask for a certificate."""
    quorum = FakeQuorum()
    for node in nodes or (1, 2, 3):
        quorum.tls[node] = files.node(f"node-{node}", *hosts)
    return quorum


def read(path: Path) -> bytes:
    return path.read_bytes()


async def restart(quorum: FakeQuorum) -> None:
    for node in quorum.nodes.values():
        await node.stop()
        await node.start()


async def refusal(quorum: FakeQuorum, security: Security | None) -> CertificateProblem:
    """What a client is told, long before its timeout."""
    async with (
        quorum,
        QuorumClient(quorum.addresses, timeout_ms=TIMEOUT_MS, security=security) as client,
    ):
        with pytest.raises(CertificateProblem) as raised:
            async with asyncio.timeout(AT_ONCE_S):
                await client.describe_quorum()
    return raised.value


@pytest.mark.parametrize("loop", LOOPS)
def test_a_client_with_a_certificate_appends_reads_and_follows(
    files: ClientFiles, loop: str
) -> None:
    async def run() -> None:
        security = security_of(files.client_keys())
        async with (
            secured_quorum(files) as quorum,
            QuorumClient(quorum.addresses, security=security) as client,
        ):
            assert await client.append([Record(key=b"k", value=b"v")]) == [0]
            quorum.elect(2)
            (offset,) = await client.append([Record(key=b"k", value=b"w")])
            async with KeyValueView(client) as view:
                await view.wait_for(offset)
                entry = view.get(b"k")
                assert entry is not None
                assert entry.value == b"w"
        assert [each.name for each in threading.enumerate() if each.name.startswith("tls-d")] == []

    LOOPS[loop](run())


@pytest.mark.parametrize("host", HOSTS)
def test_the_name_that_is_dialled_is_sent_and_an_address_is_not(
    files: ClientFiles, host: str
) -> None:
    """RFC 6066, section 3: by the name, one port may serve several."""
    names: list[str | None] = []

    def hear(tls: object, name: str | None, context: ssl.SSLContext) -> None:
        names.append(name)
        heard.set()

    async def run() -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(files.store("node"))
        context.sni_callback = hear
        server = await asyncio.start_server(
            lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=context
        )
        servers = f"{host}:{server.sockets[0].getsockname()[1]}"
        security = security_of(files.client_keys())
        async with server, QuorumClient(servers, security=security) as client:
            asking = asyncio.create_task(client.describe_quorum())
            async with asyncio.timeout(20):
                await heard.wait()
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking

    heard = asyncio.Event()
    asyncio.run(run())
    assert set(names) == {host if host == "localhost" else None}


def test_security_by_arguments_is_that_of_a_file(files: ClientFiles) -> None:
    async def run() -> None:
        given = Security(
            security_protocol="SSL",
            ssl_truststore_location=files.trust,
            ssl_keystore_location=files.store("client"),
        )
        async with (
            secured_quorum(files) as quorum,
            QuorumClient(quorum.addresses, security=given) as client,
        ):
            assert (await client.describe_quorum()).leader_id == 1

    asyncio.run(run())


def test_an_admin_client_is_as_secure_and_as_soon_refused(
    files: ClientFiles, tmp_path: Path
) -> None:
    async def run() -> None:
        good = security_of(files.client_keys())
        stranger = ClientFiles(tmp_path / "other").store("stranger")
        bad = security_of({**files.client_keys(), "ssl.keystore.location": stranger})
        async with secured_quorum(files) as quorum:
            async with QuorumAdmin(quorum.addresses, security=good) as admin:
                assert (await admin.describe()).leader_id == 1
            for security, said in (
                (bad, r"stranger\.pem"),
                (None, r"security\.protocol=SSL"),
            ):
                async with QuorumAdmin(
                    quorum.addresses, timeout_ms=TIMEOUT_MS, security=security
                ) as admin:
                    with pytest.raises(CertificateProblem, match=said):
                        async with asyncio.timeout(AT_ONCE_S):
                            await admin.describe()

    asyncio.run(run())


def test_what_does_not_exist_is_refused_and_what_means_nothing_is_named(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="ssl_trustore_location"):
        Security(security_protocol="SSL", ssl_trustore_location="ca.pem")
    file = tmp_path / "client.properties"
    file.write_text("security.protocol=PLAINTEXT\nlinger.ms=5\n")
    found = Security.from_properties(file)
    assert (found.tls, found.ignored) == (None, ("linger.ms",))
    with pytest.raises(ConfigError):
        Security.from_properties(tmp_path / "missing.properties")


def test_security_can_be_pickled_and_shows_no_secret(files: ClientFiles) -> None:
    given = security_of({**files.client_keys(), "ssl.key.password": PASSWORD})
    again = pickle.loads(pickle.dumps(given))
    assert again.tls == given.tls
    for text in (repr(given), str(given), repr(given.tls), repr(vars(given))):
        assert PASSWORD not in text


# --- refused


def test_without_a_certificate_the_server_says_that_it_wants_one(files: ClientFiles) -> None:
    keys = {"security.protocol": "SSL", "ssl.truststore.location": files.trust}
    said = str(asyncio.run(refusal(secured_quorum(files), security_of(keys))))
    assert "127.0.0.1:" in said
    assert "certificate" in said
    assert "ssl.keystore" in said


def test_a_certificate_of_another_ca_is_refused(files: ClientFiles, tmp_path: Path) -> None:
    strange = ClientFiles(tmp_path / "other")
    keys = {**files.client_keys(), "ssl.keystore.location": strange.store("stranger")}
    said = str(asyncio.run(refusal(secured_quorum(files), security_of(keys))))
    assert "stranger.pem" in said


def test_a_server_of_another_ca_is_not_trusted(files: ClientFiles, tmp_path: Path) -> None:
    strange = ClientFiles(tmp_path / "other")
    keys = {**files.client_keys(), "ssl.truststore.location": strange.trust}
    said = str(asyncio.run(refusal(secured_quorum(files), security_of(keys))))
    assert str(strange.trust) in said
    assert "ssl.truststore" in said


def test_a_server_with_the_certificate_of_another_host_is_not_trusted(files: ClientFiles) -> None:
    quorum = secured_quorum(files, hosts=("elsewhere.test",))
    said = str(asyncio.run(refusal(quorum, security_of(files.client_keys()))))
    assert "127.0.0.1" in said
    assert "elsewhere.test" in said


def test_a_server_whose_certificate_has_expired_is_not_trusted(files: ClientFiles) -> None:
    quorum = secured_quorum(files)
    for node in (1, 2, 3):
        files.store(f"node-{node}", *HOSTS, ends_in=-2 * AN_HOUR)
    said = str(asyncio.run(refusal(quorum, security_of(files.client_keys()))))
    assert "expired" in said


def test_an_expired_certificate_of_the_client_is_named(files: ClientFiles) -> None:
    keys = files.client_keys()
    store = files.store("client", ends_in=-2 * AN_HOUR)
    said = str(asyncio.run(refusal(secured_quorum(files), security_of(keys))))
    assert "expired" in said
    assert str(store) in said


def test_tls_to_plaintext_says_which_protocol_to_set(files: ClientFiles) -> None:
    problem = asyncio.run(refusal(FakeQuorum(), security_of(files.client_keys())))
    assert isinstance(problem, PeerSpeaksPlaintext)
    assert "security.protocol=PLAINTEXT" in str(problem)


def test_plaintext_to_tls_says_which_protocol_to_set(files: ClientFiles) -> None:
    said = str(asyncio.run(refusal(secured_quorum(files), None)))
    assert "security.protocol=SSL" in said


@pytest.mark.parametrize("key", ["ssl.keystore.location", "ssl.truststore.location"])
def test_a_file_that_is_missing_is_named(files: ClientFiles, key: str) -> None:
    keys = {**files.client_keys(), key: files.folder / "nowhere.pem"}
    said = str(asyncio.run(refusal(secured_quorum(files), security_of(keys))))
    assert "nowhere.pem" in said
    assert key in said


@pytest.mark.parametrize("password", ["wrong", None])
def test_an_encrypted_key_needs_its_password(files: ClientFiles, password: str | None) -> None:
    keys = {**files.client_keys(), "ssl.keystore.location": files.encrypted("client")}
    if password is not None:
        keys["ssl.key.password"] = password
    said = str(asyncio.run(refusal(secured_quorum(files), security_of(keys))))
    assert "client-locked.pem" in said
    assert "password" in said


@pytest.mark.parametrize("kind", ["encrypted", "pkcs12"])
def test_stores_with_a_password_are_read(files: ClientFiles, kind: str) -> None:
    async def run() -> None:
        keys = files.client_keys()
        if kind == "encrypted":
            keys |= {
                "ssl.keystore.location": files.encrypted("client"),
                "ssl.key.password": PASSWORD,
            }
        else:
            keys |= {
                "ssl.keystore.type": "PKCS12",
                "ssl.keystore.location": files.pkcs12("client"),
                "ssl.keystore.password": PASSWORD,
            }
        async with (
            secured_quorum(files) as quorum,
            QuorumClient(quorum.addresses, security=security_of(keys)) as client,
        ):
            assert (await client.describe_quorum()).leader_id == 1

    asyncio.run(run())


# --- one among others


def test_a_bad_node_among_good_ones_stops_nobody(files: ClientFiles, tmp_path: Path) -> None:
    async def run() -> None:
        strange = ClientFiles(tmp_path / "other")
        quorum = secured_quorum(files, 1)
        quorum.tls[2] = strange.node("node-2", *HOSTS)
        async with (
            quorum,
            QuorumClient(quorum.addresses, security=security_of(files.client_keys())) as client,
        ):
            assert await client.append([Record(value=b"v")]) == [0]

    asyncio.run(run())


def test_a_leader_with_a_bad_certificate_is_named_when_the_time_is_up(
    files: ClientFiles, tmp_path: Path
) -> None:
    async def run() -> None:
        strange = ClientFiles(tmp_path / "other")
        quorum = secured_quorum(files)
        quorum.tls[1] = strange.node("node-1", *HOSTS)
        security = security_of(files.client_keys())
        async with (
            quorum,
            QuorumClient(quorum.addresses, timeout_ms=1500, security=security) as client,
        ):
            with pytest.raises(QuorumUnavailable, match="certificate"):
                await client.describe_quorum()

    asyncio.run(run())


def barred_leader(files: ClientFiles, tmp_path: Path) -> FakeQuorum:
    """Three nodes, of which 1 leads and has the certificate of another CA."""
    quorum = secured_quorum(files)
    quorum.tls[1] = ClientFiles(tmp_path / "other").node("node-1", *HOSTS)
    return quorum


def test_a_leader_with_a_bad_certificate_is_named_long_before_the_time_is_up(
    files: ClientFiles, tmp_path: Path
) -> None:
    quorum = barred_leader(files, tmp_path)
    said = str(asyncio.run(refusal(quorum, security_of(files.client_keys()))))
    assert said.startswith(f"the leader, 127.0.0.1:{quorum.nodes[1].port}, cannot be used: ")
    assert str(files.trust) in said
    assert "ssl.truststore.location" in said


def test_a_leader_that_refuses_the_client_alone_is_named_too(
    files: ClientFiles, tmp_path: Path
) -> None:
    quorum = secured_quorum(files)
    strange = ClientFiles(tmp_path / "other")
    quorum.tls[1] = replace(quorum.tls[1], ssl_truststore_location=strange.trust)
    said = str(asyncio.run(refusal(quorum, security_of(files.client_keys()))))
    assert said.startswith(f"the leader, 127.0.0.1:{quorum.nodes[1].port}, cannot be used: ")
    assert "client.pem" in said


@pytest.mark.parametrize("way", ["it is renewed", "another is elected", "an election goes on"])
def test_a_leader_with_a_bad_certificate_is_tried_for_a_moment(
    files: ClientFiles, tmp_path: Path, way: str
) -> None:
    async def run() -> None:
        quorum = barred_leader(files, tmp_path)
        security = security_of(files.client_keys())
        async with (
            quorum,
            QuorumClient(quorum.addresses, timeout_ms=TIMEOUT_MS, security=security) as client,
        ):
            appending = asyncio.create_task(client.append([Record(value=b"v")]))
            if way == "an election goes on":
                # Together longer than such a leader is tried, but not without a break.
                await asyncio.sleep(BARRED_S - 1.5)
                quorum.elect(-1)
                await asyncio.sleep(1.5)
                quorum.elect(1)
                await asyncio.sleep(BARRED_S - 1.5)
            else:
                await asyncio.sleep(BARRED_S - 2)
            assert not appending.done()
            if way == "another is elected":
                quorum.elect(2)
            else:
                quorum.tls[1] = files.node("node-1", *HOSTS)
                await quorum.nodes[1].stop()
                await quorum.nodes[1].start()
            async with asyncio.timeout(AT_ONCE_S):
                assert await appending == [0]

    asyncio.run(run())


def test_records_that_a_barred_leader_may_have_are_counted(
    files: ClientFiles, tmp_path: Path
) -> None:
    """The leader took them, broke off before it answered, and came back with another certificate."""

    async def run() -> None:
        quorum = secured_quorum(files)
        strange = ClientFiles(tmp_path / "other").node("node-1", *HOSTS)
        security = security_of(files.client_keys())

        changing: list[asyncio.Task[None]] = []

        def break_off(node: int, request: Message, response: Message) -> Message | None:
            if not isinstance(request, ProduceRequest):
                return response
            quorum.tls[node] = strange
            changing.append(asyncio.create_task(restart(quorum)))
            return None

        async with (
            quorum,
            QuorumClient(quorum.addresses, timeout_ms=TIMEOUT_MS, security=security) as client,
        ):
            assert await client.append([Record(value=b"u")]) == [0]
            quorum.before_answer = break_off
            with pytest.raises(AppendFailed) as raised:
                async with asyncio.timeout(AT_ONCE_S):
                    await client.append([Record(value=b"v"), Record(value=b"w")])
        assert (raised.value.acknowledged_count, raised.value.unknown_count) == (0, 2)
        assert isinstance(raised.value.__cause__, CertificateProblem)
        assert str(files.trust) in str(raised.value)

    asyncio.run(run())


def test_a_node_that_is_down_is_waited_for(files: ClientFiles) -> None:
    async def run() -> None:
        quorum = secured_quorum(files)
        security = security_of(files.client_keys())
        async with quorum, QuorumClient(quorum.addresses, security=security) as client:
            await client.append([Record(value=b"v")])
            for node in quorum.nodes.values():
                await node.stop()
            waiting = asyncio.create_task(client.append([Record(value=b"w")]))
            await asyncio.sleep(0.5)
            for node in quorum.nodes.values():
                await node.start()
            assert await waiting == [1]

    asyncio.run(run())


# --- files that change


def test_a_certificate_that_is_renewed_counts_at_the_next_connection(
    files: ClientFiles, tmp_path: Path
) -> None:
    async def run() -> None:
        strange = ClientFiles(tmp_path / "other")
        keys = {**files.client_keys(), "ssl.keystore.location": strange.store("client")}
        good = read(files.store("client"))
        quorum = secured_quorum(files)
        security = security_of(keys)
        async with quorum, QuorumClient(quorum.addresses, security=security) as client:
            with pytest.raises(CertificateProblem):
                await client.describe_quorum()
            strange.write("client.pem", good)
            assert (await client.describe_quorum()).leader_id == 1

    asyncio.run(run())


def test_a_revocation_list_that_is_renewed_counts_at_the_next_connection(tmp_path: Path) -> None:
    async def run() -> None:
        authority = Authority()
        node = authority.issue("node", HOSTS)
        trust, crl = tmp_path / "ca.pem", tmp_path / "crl.pem"
        trust.write_bytes(authority.pem)
        crl.write_bytes(authority.crl())
        for path in (trust, crl):
            os.utime(path, (1e9, 1e9))
        security = Security(
            security_protocol="SSL", ssl_truststore_location=trust, ssl_crl_location=crl
        )
        quorum = FakeQuorum(size=1)
        quorum.tls[1] = TlsConfig(ssl_keystore_location=node.write(tmp_path / "node.pem"))
        async with quorum, QuorumClient(quorum.addresses, security=security) as client:
            assert (await client.describe_quorum()).leader_id == 1
            crl.write_bytes(authority.crl(node, number=2))
            await restart(quorum)
            with pytest.raises(CertificateProblem, match="revoked"):
                await client.describe_quorum()

    asyncio.run(run())


def test_half_a_file_changes_nothing(files: ClientFiles) -> None:
    async def run() -> None:
        keys = files.client_keys()
        quorum = secured_quorum(files)
        async with quorum, QuorumClient(quorum.addresses, security=security_of(keys)) as client:
            await client.append([Record(value=b"v")])
            files.write("client.pem", b"-----BEGIN PRIVATE KEY-----")
            await restart(quorum)
            assert await client.append([Record(value=b"w")]) == [1]

    asyncio.run(run())


def test_a_reader_goes_on_when_certificates_are_good_again(
    files: ClientFiles, tmp_path: Path
) -> None:
    async def run() -> None:
        strange = ClientFiles(tmp_path / "other")
        quorum = secured_quorum(files)
        security = security_of(files.client_keys())
        async with (
            quorum,
            QuorumClient(quorum.addresses, security=security) as client,
            KeyValueView(client) as view,
        ):
            (offset,) = await client.append([Record(key=b"k", value=b"u")])
            await view.wait_for(offset)
            sound = dict(quorum.tls)
            for node in sound:
                quorum.tls[node] = strange.node(f"node-{node}", *HOSTS)
            await restart(quorum)
            async with asyncio.timeout(AT_ONCE_S):
                while not isinstance(view.problem, CertificateProblem):  # noqa: ASYNC110 (it has no event)
                    await asyncio.sleep(0.01)
            quorum.tls.update(sound)
            await restart(quorum)
            (offset,) = await client.append([Record(key=b"k", value=b"v")])
            await view.wait_for(offset)

    asyncio.run(run())


def test_a_client_that_ends_in_the_middle_of_a_handshake_leaves_nothing(
    files: ClientFiles, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        quorum = secured_quorum(files)
        async with quorum:
            for wait_ms in range(20):
                client = QuorumClient(quorum.addresses, security=security_of(files.client_keys()))
                asking = asyncio.create_task(client.describe_quorum())
                await asyncio.sleep(wait_ms / 1000)
                asking.cancel()
                client.close()
                # On a quick machine it may be done by then.
                with suppress(asyncio.CancelledError, ConnectionFailed):
                    await asking

    asyncio.run(run())
    assert [each.name for each in threading.enumerate() if each.name.startswith("tls-d")] == []
    assert caplog.records == []
