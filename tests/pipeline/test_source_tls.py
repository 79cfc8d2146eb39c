"""Spark over mutual TLS: one set of options for both sources, and no secret in what Spark keeps or shows."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from quorumd.pipeline.errors import BadOption
from quorumd.pipeline.source.options import parse_options
from tests.pipeline import spark_kafka_jars
from tests.pipeline.filling import append, some_records
from tests.pipeline.quick_start import COMMAND
from tests.pipeline.spark_kafka_jars import has_spark_kafka_source
from tests.support.client_files import PASSWORD, ClientFiles
from tests.support.live_cluster import TOPIC, running
from tests.support.secure_cluster import SecureCluster
from tests.support.shaking_hands import shaking_hands

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SERVERS = {"bootstrap.servers": "localhost:1"}


class Secure(NamedTuple):
    """A quorum of mutual TLS with records in it, and what its clients have."""

    cluster: SecureCluster
    files: ClientFiles
    count: int

    @property
    def keys(self) -> dict[str, str]:
        """Settings with passwords in them."""
        found = {
            "security.protocol": "SSL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self.files.trust,
            "ssl.keystore.type": "PKCS12",
            "ssl.keystore.location": self.files.pkcs12("spark"),
            "ssl.keystore.password": PASSWORD,
            "ssl.key.password": PASSWORD,
        }
        return {name: str(value) for name, value in found.items()}

    @property
    def options(self) -> dict[str, str]:
        """Of Spark's own Kafka source, and of ours."""
        keys = {f"kafka.{name}": value for name, value in self.keys.items()}
        at = {"kafka.bootstrap.servers": self.cluster.secure_bootstrap}
        return {**at, **keys, "startingOffsets": "earliest"}


@contextmanager
def secure_quorum(folder: Path) -> Iterator[Secure]:
    with running(SecureCluster(folder / "quorum")) as cluster:
        files = ClientFiles(folder / "files", cluster.authority)
        yield Secure(cluster, files, len(append(cluster, some_records(60))))


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secure]:
    with secure_quorum(tmp_path_factory.mktemp("secure")) as made:
        yield made


@pytest.fixture
def own_quorum(tmp_path: Path) -> Iterator[Secure]:
    """For a test that kills nodes and appends."""
    with secure_quorum(tmp_path / "own") as made:
        yield made


def files_with(secret: str, *folders: Path) -> list[str]:
    """Files below the folders that hold this text."""
    return [
        str(path)
        for folder in folders
        for path in sorted(folder.rglob("*"))
        if path.is_file() and secret.encode() in path.read_bytes()
    ]


# --- without Spark


def test_what_is_wrong_is_said_at_once_and_without_the_password() -> None:
    wrong = {
        "kafka.security.protocol": "SSL",
        "kafka.ssl.keystore.type": "JKS",
        "kafka.ssl.enabled.protocols": "TLSv1",
        "kafka.ssl.key.password": PASSWORD,
    }
    with pytest.raises(BadOption) as raised:
        parse_options({**SERVERS, **wrong})
    for word in ("ssl.keystore.type", "ssl.enabled.protocols"):
        assert word in str(raised.value)
    assert PASSWORD not in str(raised.value)
    with pytest.raises(BadOption, match=r"kafka\.ssl\.trustore\.location"):
        parse_options({**SERVERS, "kafka.ssl.trustore.location": "ca.pem"})
    assert parse_options({**SERVERS, "kafka.ssl.protocol": "TLSv1.3"}).security is not None


def test_a_private_key_is_no_option() -> None:
    """Spark shows options in its plans; it hides those alone whose names speak of a password."""
    with pytest.raises(BadOption, match=r"kafka\.ssl\.keystore\.location"):
        parse_options({**SERVERS, "kafka.ssl.keystore.key": "-----BEGIN PRIVATE KEY-----"})


def test_on_ci_the_source_of_kafka_is_not_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_kafka_jars, "_CACHE", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CI", raising=False)
    assert not has_spark_kafka_source()
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match=r"Maven \(mvn\) is missing"):
        has_spark_kafka_source()


# --- with it


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_both_sources_read_with_the_same_options_and_no_secret_is_kept(
    spark: SparkSession, secure: Secure, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    ours = spark.read.format("quorumd").options(**secure.options, includeControl="false").load()
    values = sorted(row.offset for row in ours.select("offset").collect())
    assert len(values) == secure.count
    if has_spark_kafka_source():
        theirs = spark.read.format("kafka").options(**secure.options, subscribe=TOPIC).load()
        assert sorted(row.offset for row in theirs.select("offset").collect()) == values
    ours.explain(extended=True)

    stream = spark.readStream.format("quorumd").options(**secure.options).load()
    checkpoint = tmp_path / "checkpoint"
    query = (
        stream.writeStream.format("parquet")
        .option("path", str(tmp_path / "rows"))
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(120)
    query.explain(extended=True)
    shown = [str(query.lastProgress), ours._jdf.queryExecution().toString(), *capfd.readouterr()]
    assert [text for text in shown if PASSWORD in text] == []
    log = Path(str(spark.conf.get("spark.local.dir")))
    assert list(checkpoint.rglob("*"))
    assert (log / "spark.log").exists()
    assert files_with(PASSWORD, checkpoint, tmp_path / "rows") == []
    assert PASSWORD.encode() not in (log / "spark.log").read_bytes()


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_streams_of_both_sources_go_on_by_certificate_when_the_leader_is_killed(
    spark: SparkSession, own_quorum: Secure, tmp_path: Path
) -> None:
    cluster = own_quorum.cluster
    sources = {"quorumd": {"includeControl": "false"}}
    if has_spark_kafka_source():
        sources["kafka"] = {"subscribe": TOPIC}
    queries = {}
    for kind, more in sources.items():
        stream = spark.readStream.format(kind).options(**own_quorum.options, **more).load()
        queries[kind] = (
            stream.select("offset")
            .writeStream.format("parquet")
            .option("path", str(tmp_path / kind))
            .option("checkpointLocation", str(tmp_path / f"{kind}-checkpoint"))
            .trigger(processingTime="200 milliseconds")
            .start()
        )
    try:
        for query in queries.values():
            query.processAllAvailable()
        victim = cluster.wait_leader()
        cluster.kill(victim)
        append(cluster, some_records(40))
        for query in queries.values():
            query.processAllAvailable()
        cluster.start(victim)
        cluster.wait_ready(victim)
        append(cluster, some_records(20))
        for query in queries.values():
            query.processAllAvailable()
    finally:
        for query in queries.values():
            query.stop()
    ours = spark.read.format("quorumd").options(**own_quorum.options, includeControl="false").load()
    expected = sorted(row.offset for row in ours.select("offset").collect())
    assert len(expected) >= 60
    for kind in queries:
        found = spark.read.parquet(str(tmp_path / kind)).select("offset").collect()
        assert sorted(row.offset for row in found) == expected, kind


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_a_store_that_is_missing_on_an_executor_is_named(
    spark: SparkSession, secure: Secure, tmp_path: Path
) -> None:
    missing = {**secure.options, "kafka.ssl.keystore.location": str(tmp_path / "nowhere.p12")}
    with pytest.raises(Exception, match=r"nowhere\.p12.*on every executor") as raised:
        spark.read.format("quorumd").options(**missing).load().count()
    assert PASSWORD not in str(raised.value)


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_a_server_that_is_not_trusted_is_named_with_the_cause(
    spark: SparkSession, secure: Secure, tmp_path: Path
) -> None:
    trust = ClientFiles(tmp_path / "other").trust
    others = {**secure.options, "kafka.ssl.truststore.location": str(trust)}
    elsewhere = secure.files.store("elsewhere", "elsewhere.test")
    with shaking_hands(elsewhere) as port:
        at = f"127.0.0.1:{port}"
        moved = {**secure.options, "kafka.bootstrap.servers": at}
        for options, causes in (
            (others, (f"{trust} (ssl.truststore.location)", "127.0.0.1:")),
            (moved, (f"{at}: its certificate names elsewhere.test, not 127.0.0.1",)),
        ):
            with pytest.raises(Exception, match="certificate") as raised:
                spark.read.format("quorumd").options(**options).load().count()
            said = str(raised.value)
            assert [cause for cause in causes if cause not in said] == [], said
            assert PASSWORD not in said


@pytest.mark.spark
@pytest.mark.timeout(300)
@pytest.mark.parametrize("spelling", ["as Kafka's tools", "as Spark's source"])
def test_tables_are_made_and_replicas_audited_with_a_file_of_properties(
    quick_start: None, secure: Secure, tmp_path: Path, spelling: str
) -> None:
    keys = secure.keys if spelling == "as Kafka's tools" else secure.options
    config = tmp_path / "pipeline.properties"
    lines = {**keys, "linger.ms": "5"}
    config.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
    where = ["-b", secure.cluster.secure_bootstrap, "--command-config", str(config)]
    tables = tmp_path / "tables"
    for arguments in (["audit", *where], ["batch", *where, "--output", str(tables)]):
        done = subprocess.run(
            [*COMMAND, *arguments], capture_output=True, text=True, timeout=200, check=False
        )
        assert done.returncode == 0, done
        assert "linger.ms" in done.stderr
        assert PASSWORD not in done.stdout + done.stderr
    assert files_with(PASSWORD, tables) == []
