"""Kafka's metadata records: decoded as Kafka's own tool decodes them, and without their secrets."""

from __future__ import annotations

import json
import re
import zipfile
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

from quorumd.pipeline.audit import audit
from quorumd.pipeline.files import find_replicas, plan_segment, read_rows
from quorumd.pipeline.metadata import (
    REDACTED,
    NotMetadata,
    metadata_json,
    metadata_rows,
)
from quorumd.pipeline.metadata_command import metadata
from quorumd.pipeline.schemas import METADATA
from quorumd.wire.metadata_declarations import Field, declarations
from quorumd.wire.schema import versions_from_text
from tests.support.kafka_controller import KafkaController
from tests.support.kafka_jars import OTHER_VERSIONS, kafka_libs, requires_java
from tests.support.kafka_tools import run_tool

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ALL = (1 << 63) - 1
SALT, KEY = "c2FsdHNhbHQ=", "a2V5a2V5"
SCRAM = (
    b"\x01\x0b\x00"  # frame 1, record 11, version 0
    b"\x06alice\x01"
    b"\x09saltsalt\x07keykey\x07keykey\x00\x00\x10\x00\x00"
)


def config(name: bytes, value: bytes | None) -> bytes:
    end = b"\x00" if value is None else bytes([len(value) + 1]) + value
    return b"\x01\x04\x00\x02" + b"\x06topic" + bytes([len(name) + 1]) + name + end + b"\x00"


def test_secrets_of_a_scram_credential_are_shown_only_on_request() -> None:
    hidden = metadata_json(SCRAM)
    assert (hidden.name, hidden.version) == ("UserScramCredentialRecord", 0)
    assert json.loads(hidden.json) == {
        "name": "alice",
        "mechanism": 1,
        "salt": REDACTED,
        "storedKey": REDACTED,
        "serverKey": REDACTED,
        "iterations": 4096,
    }
    shown = json.loads(metadata_json(SCRAM, show_secrets=True).json)
    assert (shown["salt"], shown["storedKey"], shown["serverKey"]) == (SALT, KEY, KEY)


@pytest.mark.parametrize(
    ("name", "is_shown"),
    [
        (b"retention.ms", True),
        (b"listener.name.external.num.network.threads", True),
        (b"ssl.keystore.password", False),
        (b"listener.name.external.ssl.key.password", False),
        (b"sasl.jaas.config", False),
        (b"listener.name.secret.retention.ms", False),
        (b"somebodys.plugin.option", False),
    ],
)
def test_a_config_is_shown_only_if_it_is_known_to_be_harmless(name: bytes, is_shown: bool) -> None:
    found = json.loads(metadata_json(config(name, b"1234")).json)
    assert found["value"] == ("1234" if is_shown else REDACTED)
    assert (
        json.loads(metadata_json(config(name, b"1234"), show_secrets=True).json)["value"] == "1234"
    )
    assert json.loads(metadata_json(config(name, None)).json)["value"] is None


def test_a_type_or_version_of_a_later_kafka_is_named_and_not_shown() -> None:
    for value, name, version in (
        (b"\x01\x63\x02secret", "Unknown99", 2),
        (b"\x01\x0b\x07secret", "UserScramCredentialRecord", 7),
    ):
        found = metadata_json(value)
        assert (found.name, found.version) == (name, version)
        assert json.loads(found.json) == {"size_bytes": len(value)}
        assert json.loads(metadata_json(value, show_secrets=True).json)["value_hex"] == value.hex()


def test_bytes_that_are_no_metadata_are_refused_and_nothing_else_happens() -> None:
    random = Random(7)
    for cut in range(len(SCRAM)):
        with pytest.raises(NotMetadata):
            metadata_json(SCRAM[:cut])
    with pytest.raises(NotMetadata):
        metadata_json(SCRAM + b"\x00")
    for _ in range(3000):
        head = bytes([1, random.randrange(29), random.randrange(5)])
        try:
            metadata_json(head + random.randbytes(random.randrange(80)))
        except NotMetadata:
            continue


@requires_java
def test_the_declarations_are_those_of_the_newest_kafka() -> None:
    newest = OTHER_VERSIONS[-1]
    with zipfile.ZipFile(kafka_libs(newest) / f"kafka-metadata-{newest}.jar") as jar:
        names = [
            name for name in jar.namelist() if re.fullmatch(r"common/metadata/\w+\.json", name)
        ]
        texts = [jar.read(name).decode() for name in names]
    found = declarations()
    assert len(texts) == len(found)
    for text in texts:
        definition = json.loads(re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE))
        ours = found[definition["apiKey"]]
        assert ours.name == definition["name"]
        assert ours.versions == versions_from_text(definition["validVersions"])
        assert definition["flexibleVersions"] == "0+"
        assert_fields(ours.fields, definition["fields"])


def assert_fields(ours: list[Field], theirs: list[dict[str, Any]]) -> None:
    assert [each.name for each in ours] == [each["name"] for each in theirs]
    for one, other in zip(ours, theirs, strict=True):
        assert ("[]" if one.is_array else "") + one.type == other["type"]
        assert one.versions == versions_from_text(other["versions"])
        assert one.nullable == versions_from_text(other.get("nullableVersions", "none"))
        assert one.tag == other.get("tag")
        assert_fields(one.fields, other.get("fields", []))


@requires_java
@pytest.mark.timeout(300)
def test_a_real_controllers_log_is_sound_and_decoded_as_kafkas_tool_does(
    tmp_path: Path, spark: SparkSession
) -> None:
    controller = KafkaController(tmp_path / "kafka", node_id=7)
    controller.format("--add-scram", "SCRAM-SHA-256=[name=alice,password=alice-secret]")
    try:
        controller.start()
        assert audit([controller.data_folder]).is_sound
        controller.stop()
        found = audit([controller.data_folder])
        assert found.is_sound, found.findings
        (segment,) = controller.log_folder.glob("*.log")
        dump = run_tool(
            "org.apache.kafka.tools.DumpLogSegments",
            *("--files", str(segment), "--cluster-metadata-decoder"),
        )
    finally:
        controller.kill()
    theirs = {
        int(line.split("offset: ")[1].split()[0]): json.loads(line.split(" payload: ")[1])
        for line in dump.stdout.splitlines()
        if " payload: " in line
    }
    ours = {row["offset"]: row for row in metadata_of(controller.data_folder)}
    assert len(theirs) > 5
    assert set(ours) == set(theirs)
    for offset, row in ours.items():
        expected = theirs[offset]
        assert row["type_name"].upper() == expected["type"].replace("_", "")
        assert (row["version"], json.loads(row["json"])) == (expected["version"], expected["data"])
    (scram,) = (row for row in ours.values() if row["type_name"] == "UserScramCredentialRecord")
    secret = json.loads(scram["json"])["storedKey"]
    hidden = metadata_of(controller.data_folder, show_secrets=False)
    assert len(hidden) == len(ours)
    assert secret not in str(hidden)
    frame = (
        spark.read.format("quorumd").option("table", "metadata").load(str(controller.data_folder))
    )
    in_spark = [row.asDict() for row in frame.orderBy("offset").collect()]
    assert [row["json"] for row in in_spark] == [row["json"] for row in hidden]
    assert frame.where("type_name = 'FeatureLevelRecord'").count() >= 1
    told = CliRunner().invoke(metadata, [str(controller.data_folder)]).stdout
    lines = {row["offset"]: row for row in map(json.loads, told.splitlines())}
    assert set(lines) == set(theirs)
    assert lines[scram["offset"]]["data"]["storedKey"] == REDACTED
    shown = CliRunner().invoke(metadata, [str(controller.data_folder), "--show-secrets"]).stdout
    assert secret not in told
    assert secret in shown


def metadata_of(folder: Path, *, show_secrets: bool = True) -> list[dict[str, Any]]:
    """All rows of a log's segments."""
    rows: list[dict[str, Any]] = []
    for segment in find_replicas([folder])[0].segments:
        for each in plan_segment(segment).ranges:
            for records in read_rows("records", each, 0, ALL):
                decoded = metadata_rows(records, show_secrets=show_secrets)
                assert isinstance(decoded, pa.RecordBatch)
                assert decoded.schema.equals(METADATA)
                rows += decoded.to_pylist()
    return rows
