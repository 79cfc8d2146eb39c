"""The options of the data source: what is understood, and what is said about all else."""

from __future__ import annotations

import pytest

from quorumd.pipeline.errors import BadOption
from quorumd.pipeline.source.options import EARLIEST, LATEST, NAMES, Position, parse_options
from quorumd.raft.types import Address

SERVERS = {"bootstrap.servers": "a:9093"}


def test_names_count_without_case_as_spark_hands_them_over() -> None:
    given = {name.lower(): "1" for name in ("startingOffsets", "maxOffsetsPerTrigger")}
    options = parse_options({**SERVERS, **given, "TABLE": "control"})
    assert options.starting == Position(1)
    assert options.max_offsets_per_trigger == 1
    assert options.table == "control"


def test_what_is_not_given_has_a_default() -> None:
    options = parse_options({"kafka.bootstrap.servers": "a:9093,[::1]:9094"})
    assert options.servers == (Address("a", 9093), Address("::1", 9094))
    assert (options.table, options.starting, options.ending) == ("records", None, None)
    assert options.fail_on_data_loss
    assert options.include_headers
    assert options.include_control
    assert (options.min_partitions, options.max_offsets_per_trigger) == (None, None)


@pytest.mark.parametrize(
    ("text", "offset"),
    [
        ("earliest", EARLIEST),
        ("LATEST", LATEST),
        ("23", 23),
        ('{"__cluster_metadata":{"0":23}}', 23),
        ('{"__cluster_metadata": {"0": -2}}', EARLIEST),
        ('{"__cluster_metadata":{"0":-1}}', LATEST),
    ],
)
def test_an_offset_is_a_word_a_number_or_kafkas_json(text: str, offset: int) -> None:
    assert parse_options({**SERVERS, "startingOffsets": text}).starting == Position(offset)
    assert parse_options({**SERVERS, "endingOffsets": text}).ending == Position(offset)


def test_a_timestamp_is_a_place_to_begin_or_end() -> None:
    options = parse_options({**SERVERS, "startingTimestamp": "5", "endingTimestamp": "0"})
    assert options.starting is not None
    assert options.ending is not None
    assert (options.starting.timestamp_ms, options.ending.timestamp_ms) == (5, 0)


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("/a,/b c", ("/a", "/b c")),
        ("/data/node-*", ("/data/node-*",)),
        ("file:///a%20b,file:/c", ("/a b", "/c")),
    ],
)
def test_a_path_names_one_directory_or_several(path: str, found: tuple[str, ...]) -> None:
    assert parse_options({"path": path}).paths == found


def test_several_paths_come_as_spark_puts_them() -> None:
    assert parse_options({"paths": '["/a", "/b"]'}).paths == ("/a", "/b")


def test_the_greatest_number_that_may_be_is_one() -> None:
    options = parse_options({"path": "/a", "minPartitions": "100000", "replica": "2147483647"})
    assert (options.min_partitions, options.replica) == (100_000, 2_147_483_647)


def test_how_a_quorum_is_reached_means_nothing_to_files() -> None:
    given = {"kafka.security.protocol": "SSL", "kafka.ssl.keystore.location": "/nowhere"}
    assert parse_options({"path": "/a", **given}).security is None


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("startingoffset", "startingOffsets"),
        ("maxOffsetsPerTriger", "maxOffsetsPerTrigger"),
        ("bootstrap.server", "bootstrap.servers"),
        ("failondatalos", "failOnDataLoss"),
    ],
)
def test_an_unknown_option_is_refused_with_the_closest_name(name: str, meant: str) -> None:
    with pytest.raises(BadOption, match=rf"no option {name}: did you mean {meant}\?"):
        parse_options({**SERVERS, name: "1"})


def test_an_option_that_is_like_no_other_is_refused_with_all_names() -> None:
    with pytest.raises(BadOption) as caught:
        parse_options({**SERVERS, "zzz": "1"})
    assert "did you mean" not in str(caught.value)
    assert all(name in str(caught.value) for name in NAMES)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "neither is given"),
        ({**SERVERS, "path": "/a"}, "not both"),
        ({**SERVERS, "kafka.bootstrap.servers": "b:1"}, "mean the same"),
        ({"bootstrap.servers": "localhost"}, "has no port"),
        ({"path": " , "}, "neither is given"),
        ({"path": "/a", "paths": '["/b"]'}, "both given"),
        ({"paths": "{}"}, "expected a JSON list"),
        ({"paths": "[" * 100_000}, "not valid JSON"),
        ({"path": "s3://bucket/a"}, "only local files"),
        ({**SERVERS, "replica": "1"}, "read from its leader"),
        ({**SERVERS, "replica": "0"}, "read from its leader"),
        ({**SERVERS, "minPartitions": "100001"}, "expected a number from 1 to 100000"),
        ({**SERVERS, "table": "rows"}, "expected records, batches, control or metadata"),
        ({**SERVERS, "startingOffsets": "first"}, "expected earliest, latest, an offset"),
        ({**SERVERS, "startingOffsets": "-3"}, "expected earliest"),
        ({**SERVERS, "startingOffsets": '{"other":{"0":1}}'}, "one topic and one partition"),
        (
            {**SERVERS, "startingOffsets": '{"__cluster_metadata":{"0":1,"1":1}}'},
            "one topic and one partition",
        ),
        ({**SERVERS, "startingOffsets": '{"__cluster_metadata":{"0":-3}}'}, "-3 is no offset"),
        ({**SERVERS, "startingOffsets": '{"__cluster_metadata":{"0":true}}'}, "True is no offset"),
        ({**SERVERS, "startingOffsets": '{"__cluster_metadata":'}, "not valid JSON"),
        ({**SERVERS, "startingOffsets": '{"a":' * 100_000}, "not valid JSON"),
        ({**SERVERS, "startingOffsets": "1", "startingTimestamp": "1"}, "give one of them"),
        ({**SERVERS, "startingTimestamp": "yesterday"}, "expected a whole number"),
        ({**SERVERS, "maxOffsetsPerTrigger": "0"}, "expected a number from 1"),
        ({**SERVERS, "failOnDataLoss": "yes"}, "expected true or false"),
        ({**SERVERS, "timeoutMs": "1s"}, "expected a whole number"),
        ({**SERVERS, "timeoutMs": "2147483648"}, "expected a number from 1 to 2147483647"),
    ],
)
def test_a_value_that_cannot_be_is_refused_by_name(given: dict[str, str], said: str) -> None:
    with pytest.raises(BadOption) as caught:
        parse_options(given)
    assert said in str(caught.value)
    name = list(given)[-1] if given else "bootstrap.servers"
    assert name in str(caught.value)
