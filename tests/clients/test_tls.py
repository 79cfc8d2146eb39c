"""Foreign clients by certificate at a live quorum of mutual TLS, through the kill of a leader."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, NamedTuple

import aiokafka.errors
import confluent_kafka
import pytest
from aiokafka.helpers import create_ssl_context

from tests.clients.aiokafka_client import Aiokafka
from tests.clients.conftest import UNHURRIED
from tests.clients.interface import EARLIEST, Client
from tests.clients.jvm import CONSUMER, PRODUCER, TOOLS, Command, Running, lines_of, run_all
from tests.clients.kafka_python import KafkaPython, KafkaPythonError
from tests.clients.librdkafka import Librdkafka
from tests.support.client_files import PASSWORD, ClientFiles
from tests.support.live_cluster import TOPIC, running
from tests.support.secure_cluster import SecureCluster

pytestmark = [pytest.mark.live, pytest.mark.filterwarnings("ignore::ResourceWarning")]

RECORDS = 600
KILLED_AFTER = 150
PACE_S = 0.002
REFUSED_MS = 8000


class Secure(NamedTuple):
    """A quorum of three, and what its clients have."""

    cluster: SecureCluster
    files: ClientFiles


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secure]:
    with running(SecureCluster(tmp_path_factory.mktemp("quorum"), settings=UNHURRIED)) as cluster:
        yield Secure(cluster, ClientFiles(tmp_path_factory.mktemp("files"), cluster.authority))


@pytest.fixture(autouse=True)
def _whole_quorum(secure: Secure) -> None:
    secure.cluster.start()
    secure.cluster.wait_ready()


def kafka_python(files: ClientFiles, has_certificate: bool) -> Client:
    settings: dict[str, Any] = {
        "security_protocol": "SSL",
        "ssl_cafile": str(files.trust),
        # It may miss the end of a connection, and waits so long for an answer on it: 30 s by default.
        "request_timeout_ms": 5000,
    }
    if has_certificate:
        certificate, key = files.pair("kafka-python")
        settings |= {"ssl_certfile": str(certificate), "ssl_keyfile": str(key)}
    else:
        settings["bootstrap_timeout_ms"] = REFUSED_MS  # so long it tries again
    return KafkaPython(settings)


def aiokafka_(files: ClientFiles, has_certificate: bool) -> Client:
    certificate, key = files.pair("aiokafka")
    own = {"certfile": str(certificate), "keyfile": str(key)} if has_certificate else {}
    context = create_ssl_context(cafile=str(files.trust), **own)
    return Aiokafka({"security_protocol": "SSL", "ssl_context": context})


def raise_tls(error: confluent_kafka.KafkaError) -> None:
    """What librdkafka says to its callback alone, and tries again."""
    if "certificate required" in error.str():
        raise confluent_kafka.KafkaException(error)


def librdkafka(files: ClientFiles, has_certificate: bool) -> Client:
    settings: dict[str, Any] = {
        "security.protocol": "ssl",
        "ssl.ca.location": str(files.trust),
        "error_cb": raise_tls,
    }
    if has_certificate:
        settings |= {
            "ssl.keystore.location": str(files.pkcs12("librdkafka")),
            "ssl.keystore.password": PASSWORD,
        }
    return Librdkafka(settings)


Make = Callable[[ClientFiles, bool], Client]
CLIENTS: Mapping[str, Make] = {
    "kafka-python": kafka_python,
    "aiokafka": aiokafka_,
    "librdkafka": librdkafka,
}


@pytest.fixture(params=CLIENTS)
def make(request: pytest.FixtureRequest) -> Make:
    return CLIENTS[request.param]


@pytest.mark.timeout(180)
def test_nothing_acknowledged_is_lost_when_a_leader_is_killed(secure: Secure, make: Make) -> None:
    cluster = secure.cluster
    servers = cluster.secure_bootstrap
    client = make(secure.files, True)
    producer = client.producer(servers, idempotent=True)
    victim = cluster.wait_leader()
    for number in range(RECORDS):
        if number == KILLED_AFTER:
            cluster.kill(victim)
        producer.send(b"%s-%d" % (make.__name__.encode(), number))
        time.sleep(PACE_S)
    outcomes = producer.finish()
    acknowledged = {each for each in outcomes if isinstance(each, int)}
    assert len(acknowledged) == RECORDS, [each for each in outcomes if not isinstance(each, int)][
        :3
    ]
    consumer = client.consumer(servers, min(acknowledged))
    try:
        found = consumer.read(RECORDS)
    finally:
        consumer.close()
    values = {each.offset: each.value for each in found}
    for number, offset in enumerate(outcomes):
        assert isinstance(offset, int)
        assert values[offset] == b"%s-%d" % (make.__name__.encode(), number)


def refused(client: Client, servers: str) -> str:
    """What the client says that it is refused with."""
    heard: list[str] = []
    try:
        consumer = client.consumer(servers, EARLIEST)
        try:
            heard += [str(each) for each in consumer.read(1)]
        finally:
            consumer.close()
    except (
        KafkaPythonError,
        aiokafka.errors.KafkaError,
        confluent_kafka.KafkaException,
    ) as error:
        return f"{type(error).__name__}: {error}"
    raise AssertionError(f"no refusal was heard of: {heard}")


def test_without_a_certificate_a_client_is_refused_and_the_nodes_say_why(
    secure: Secure, make: Make
) -> None:
    before = sum(secure.cluster.output(node).count("certificate") for node in (1, 2, 3))
    assert refused(make(secure.files, False), secure.cluster.secure_bootstrap)
    after = sum(secure.cluster.output(node).count("certificate") for node in (1, 2, 3))
    assert after > before


# -- Java


def java_keys(files: ClientFiles, kind: str) -> dict[str, object]:
    if kind == "PEM":
        return files.client_keys("java")
    return {
        "security.protocol": "SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": files.trust,
        "ssl.keystore.type": "PKCS12",
        "ssl.keystore.location": files.pkcs12("java"),
        "ssl.keystore.password": PASSWORD,
        "ssl.key.password": PASSWORD,
    }


@pytest.mark.java
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["PEM", "PKCS12"])
def test_kafkas_own_tools_read_the_same_properties(secure: Secure, kind: str) -> None:
    servers = secure.cluster.secure_bootstrap
    config = str(secure.files.properties(java_keys(secure.files, kind), f"{kind}.properties"))
    at = ("--bootstrap-server", servers)
    lines = [f"{kind}-{number}" for number in range(20)]
    written, described = run_all(
        [
            Command(
                PRODUCER,
                (*at, "--topic", TOPIC, "--command-config", config),
                "".join(f"{line}\n" for line in lines),
            ),
            Command(
                f"{TOOLS}.MetadataQuorumCommand",
                (*at, "--command-config", config, "describe", "--status"),
            ),
        ]
    )
    assert (written.returncode, written.stderr) == (0, "")
    assert described.returncode == 0, described.stderr
    assert "LeaderId:" in described.stdout
    (read,) = run_all([consumer(servers, config)])
    assert read.returncode == 0, read.stderr
    assert set(lines) <= {line.value for line in lines_of(read.stdout)}


def consumer(servers: str, config: str) -> Command:
    arguments = ("--bootstrap-server", servers, "--topic", TOPIC, "--partition", "0")
    arguments += ("--offset", "earliest", "--timeout-ms", "8000", "--command-config", config)
    arguments += ("--formatter-property", "print.timestamp=true")
    arguments += ("--formatter-property", "print.offset=true")
    return Command(CONSUMER, arguments)


@pytest.mark.java
@pytest.mark.timeout(300)
def test_java_goes_on_by_certificate_when_a_leader_is_killed(
    secure: Secure, tmp_path: Path
) -> None:
    cluster = secure.cluster
    begin = cluster.wait_converged()
    config = str(secure.files.properties(java_keys(secure.files, "PEM"), "killed.properties"))
    at = ("--bootstrap-server", cluster.secure_bootstrap, "--topic", TOPIC)
    at += ("--command-config", config)
    patient = ("retries=1000", "delivery.timeout.ms=60000")
    options = [word for each in patient for word in ("--command-property", each)]
    shown = [f"print.{each}=true" for each in ("timestamp", "offset")]
    options_of_reader = [word for each in shown for word in ("--formatter-property", each)]
    from_begin = ("--partition", "0", "--offset", str(begin), *options_of_reader)
    victim = cluster.wait_leader()
    sent: list[str] = []
    with ExitStack() as stack:
        reader, writer = (
            stack.enter_context(closing(Running(tmp_path, name, Command(program, arguments))))
            for name, program, arguments in (
                ("reader", CONSUMER, (*at, *from_begin)),
                ("writer", PRODUCER, (*at, *options)),
            )
        )

        def write(count: int) -> None:
            for _ in range(count):
                sent.append(f"java-{len(sent)}")
                writer.feed(sent[-1])
                time.sleep(PACE_S)

        write(KILLED_AFTER)
        cluster.wait_for(lambda: len(lines_of(reader.out)) >= KILLED_AFTER, "the reader")
        describe = (*at[:2], "--command-config", config, "describe", "--status")
        tool = Command(f"{TOOLS}.MetadataQuorumCommand", describe)
        described = stack.enter_context(closing(Running(tmp_path, "described", tool)))
        cluster.kill(victim)
        write(KILLED_AFTER)
        assert described.finish() == 0, described.err
        leader = re.search(r"LeaderId: +(\d+)", described.out)
        assert leader is not None, described.out
        assert int(leader[1]) != victim
        assert writer.finish() == 0, writer.err
        assert "Error when sending" not in writer.err
        cluster.wait_for(lambda: len(lines_of(reader.out)) >= len(sent), "the reader")
        assert [line.value for line in lines_of(reader.out)] == sent


@pytest.mark.java
@pytest.mark.timeout(300)
def test_java_without_a_certificate_is_told_so(secure: Secure, tmp_path: Path) -> None:
    keys = {"ssl.truststore.type": "PEM", "ssl.truststore.location": secure.files.trust}
    config = str(secure.files.properties(keys, "bare.properties"))
    at = ("--bootstrap-server", secure.cluster.secure_bootstrap)
    (done,) = run_all(
        [
            Command(
                f"{TOOLS}.MetadataQuorumCommand",
                (*at, "--command-config", config, "describe", "--status"),
            )
        ]
    )
    assert done.returncode != 0
    assert "SslAuthenticationException" in done.stdout + done.stderr
