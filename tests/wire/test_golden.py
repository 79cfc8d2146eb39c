"""Bytes that were checked with Apache Kafka 4.3.1's own decoders."""

from __future__ import annotations

from uuid import UUID

import pytest

from quorumd.wire.codec import decode, encode
from quorumd.wire.control_records import (
    KRaftVersion,
    KRaftVersionFeature,
    KRaftVoter,
    KRaftVoterEndpoint,
    KRaftVoters,
    LeaderChange,
    LeaderChangeVoter,
    ProducerStates,
    ProducerStatesBatch,
    ProducerStatesProducer,
    SnapshotFooter,
    SnapshotHeader,
    decode_control_batch,
    decode_control_record,
    encode_control_batch,
    encode_control_record,
)
from quorumd.wire.headers import (
    decode_request_header,
    decode_response_header,
    encode_request_header,
    encode_response_header,
)
from quorumd.wire.messages.api_versions import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    ApiVersionsResponseApiKey,
    ApiVersionsResponseSupportedFeature,
)
from quorumd.wire.messages.fetch import (
    FetchRequest,
    FetchRequestPartition,
    FetchRequestReplicaState,
    FetchRequestTopic,
    FetchResponse,
    FetchResponseCurrentLeader,
    FetchResponseDivergingEpoch,
    FetchResponseNodeEndpoint,
    FetchResponsePartition,
    FetchResponseTopic,
)
from quorumd.wire.messages.vote import (
    VoteRequest,
    VoteRequestPartition,
    VoteRequestTopic,
    VoteResponse,
    VoteResponseNodeEndpoint,
    VoteResponsePartition,
    VoteResponseTopic,
)
from quorumd.wire.records import Record, build_batch, iter_records
from quorumd.wire.varints import (
    encode_unsigned_varint,
    encode_varint,
    read_unsigned_varint,
    read_varint,
    read_varlong,
)

ONES = UUID("11111111-1111-4111-8111-111111111111")
TWOS = UUID("22222222-2222-4222-8222-222222222222")
METADATA_ID = UUID(int=1)
METADATA = "__cluster_metadata"

VOTE_REQUEST = VoteRequest(
    cluster_id="abc",
    voter_id=2,
    topics=(
        VoteRequestTopic(
            topic_name=METADATA,
            partitions=(
                VoteRequestPartition(
                    replica_epoch=5,
                    replica_id=1,
                    replica_directory_id=ONES,
                    voter_directory_id=TWOS,
                    last_offset_epoch=4,
                    last_offset=100,
                    pre_vote=True,
                ),
            ),
        ),
    ),
)
VOTE_GRANTED = VoteResponse(
    topics=(
        VoteResponseTopic(
            topic_name=METADATA,
            partitions=(VoteResponsePartition(leader_id=-1, leader_epoch=5, vote_granted=True),),
        ),
    )
)
VOTE_REJECTED = VoteResponse(
    topics=(
        VoteResponseTopic(
            topic_name=METADATA, partitions=(VoteResponsePartition(leader_id=1, leader_epoch=5),)
        ),
    ),
    node_endpoints=(VoteResponseNodeEndpoint(node_id=1, host="h1", port=9093),),
)
FETCH_REQUEST = FetchRequest(
    cluster_id="abc",
    replica_state=FetchRequestReplicaState(replica_id=2),
    max_wait_ms=500,
    max_bytes=1024 * 1024,
    topics=(
        FetchRequestTopic(
            topic_id=METADATA_ID,
            partitions=(
                FetchRequestPartition(
                    current_leader_epoch=5,
                    fetch_offset=100,
                    last_fetched_epoch=4,
                    replica_directory_id=TWOS,
                ),
            ),
        ),
    ),
)
FETCH_RESPONSE = FetchResponse(
    responses=(
        FetchResponseTopic(
            topic_id=METADATA_ID,
            partitions=(
                FetchResponsePartition(
                    high_watermark=95,
                    log_start_offset=0,
                    diverging_epoch=FetchResponseDivergingEpoch(epoch=3, end_offset=90),
                    current_leader=FetchResponseCurrentLeader(leader_id=1, leader_epoch=5),
                    aborted_transactions=None,
                    records=b"",
                ),
            ),
        ),
    ),
    node_endpoints=(FetchResponseNodeEndpoint(node_id=1, host="h1", port=9093),),
)
VOTE_RESPONSE_START = "0000 02 13 5f5f636c75737465725f6d65746164617461"

BODIES = {
    "vote request": (
        VOTE_REQUEST,
        2,
        """04616263 00000002 02 13 5f5f636c75737465725f6d65746164617461
        02 00000000 00000005 00000001 11111111111141118111111111111111
        22222222222242228222222222222222 00000004 0000000000000064 01 00 00 00""",
    ),
    "vote granted": (
        VOTE_GRANTED,
        2,
        VOTE_RESPONSE_START + "02 00000000 0000 ffffffff 00000005 01 00  00 00",
    ),
    "vote rejected": (
        VOTE_REJECTED,
        2,
        VOTE_RESPONSE_START
        + "02 00000000 0000 00000001 00000005 00 00 00 01 00 0b 02 00000001 036831 2385 00",
    ),
    "fetch request": (
        FETCH_REQUEST,
        17,
        """000001f4 00000000 00100000 00 00000000 ffffffff
        02 00000000000000000000000000000001
        02 00000000 00000005 0000000000000064 00000004 ffffffffffffffff 00000000
        01 00 10 22222222222242228222222222222222 00 01 01
        02 00 04 04616263  01 0d 00000002ffffffffffffffff00""",
    ),
    "fetch response": (
        FETCH_RESPONSE,
        17,
        """00000000 0000 00000000 02 00000000000000000000000000000001
        02 00000000 0000 000000000000005f ffffffffffffffff 0000000000000000 00 ffffffff 01
        02 00 0d 00000003 000000000000005a 00 01 09 00000001 00000005 00 00
        01 00 0e 02 00000001 036831 00002385 00 00""",
    ),
    "api versions request": (
        ApiVersionsRequest(client_software_name="demo", client_software_version="1.0"),
        3,
        "0564656d6f 04312e30 00",
    ),
    "api versions of an unknown version": (
        ApiVersionsResponse(
            error_code=35, api_keys=(ApiVersionsResponseApiKey(api_key=18, max_version=4),)
        ),
        0,
        "0023 00000001 0012 0000 0004",
    ),
    "api versions response": (
        ApiVersionsResponse(
            api_keys=(ApiVersionsResponseApiKey(api_key=18, max_version=4),),
            supported_features=(
                ApiVersionsResponseSupportedFeature(name="kraft.version", max_version=1),
            ),
            finalized_features_epoch=5,
        ),
        4,
        """0000 02 0012 0000 0004 00 00000000
        02  00 14 02 0e6b726166742e76657273696f6e 0000 0001 00 01 08 0000000000000005""",
    ),
}


@pytest.mark.parametrize(("message", "version", "text"), BODIES.values(), ids=BODIES)
def test_bodies_are_those_of_kafka(message, version, text):
    golden = bytes.fromhex(text)
    assert decode(type(message), version, golden) == message
    assert encode(message, version) == golden


@pytest.mark.parametrize(
    ("key", "version", "correlation_id", "client_id", "text"),
    [
        (52, 2, 7, "raft-client-1", "0034 0002 00000007 000d 726166742d636c69656e742d31 00"),
        (18, 3, 1, "q", "0012 0003 00000001 000171 00"),
        (18, 2, 1, "q", "0012 0002 00000001 000171"),
        (1, 11, 1, None, "0001 000b 00000001 ffff"),
    ],
)
def test_request_headers_are_those_of_kafka(key, version, correlation_id, client_id, text):
    golden = bytes.fromhex(text)
    assert encode_request_header(key, version, correlation_id, client_id) == golden
    header, body_at = decode_request_header(golden + b"body")
    assert header == (key, version, correlation_id, client_id or "")
    assert body_at == len(golden)


@pytest.mark.parametrize(
    ("key", "version", "text"),
    [
        (52, 2, "00000007 00"),
        (18, 4, "00000007"),  # ApiVersions has no tags here in any version
        (1, 11, "00000007"),
        (1, 12, "00000007 00"),
        (53, 0, "00000007"),
    ],
)
def test_response_headers_are_those_of_kafka(key, version, text):
    golden = bytes.fromhex(text)
    assert encode_response_header(key, version, 7) == golden
    assert decode_response_header(key, version, golden + b"body") == (7, len(golden))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "00"),
        (1, "01"),
        (127, "7f"),
        (128, "8001"),
        (300, "ac02"),
        (16383, "ff7f"),
        (16384, "808001"),
        (2**31 - 1, "ffffffff07"),
        (2**32 - 1, "ffffffff0f"),
    ],
)
def test_unsigned_varints(value, text):
    golden = bytes.fromhex(text)
    assert encode_unsigned_varint(value) == golden
    assert read_unsigned_varint(golden, 0) == (value, len(golden))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "00"),
        (-1, "01"),
        (1, "02"),
        (-2, "03"),
        (63, "7e"),
        (64, "8001"),
        (-64, "7f"),
        (-65, "8101"),
        (2**31 - 1, "feffffff0f"),
        (-(2**31), "ffffffff0f"),
        (2**63 - 1, "feffffffffffffffff01"),
        (-(2**63), "ffffffffffffffffff01"),
    ],
)
def test_zig_zag_varints(value, text):
    golden = bytes.fromhex(text)
    assert encode_varint(value) == golden
    assert read_varlong(golden, 0) == (value, len(golden))
    if len(golden) <= 5:
        assert read_varint(golden, 0) == (value, len(golden))


def test_varints_that_go_on_for_too_long_are_refused():
    with pytest.raises(ValueError, match="more than 5 bytes"):
        read_varint(b"\xff" * 5 + b"\1", 0)
    with pytest.raises(ValueError, match="more than 10 bytes"):
        read_varlong(b"\xff" * 10 + b"\1", 0)


DATA_BATCH = bytes.fromhex("""
    0000000000000000 0000003a 00000001 02 acc6b066 0000 00000000
    0000000000000000 0000000000000000 ffffffffffffffff ffff ffffffff 00000001
    10 00 00 00 01 04 6869 00""")
CONTROL_BATCH = bytes.fromhex("""
    0000000000000000 000000a9 00000001 02 9c782d10 0020 00000002
    0000018bcfe56800 0000018bcfe56800 ffffffffffffffff ffff ffffffff 00000003
    58 00 00 00 08 00000002 44 0000 00000001 04 00000001 00 00000002 00 00000003 00
       03 00000001 00 00000003 00 00 00
    1e 00 00 02 08 00000005 0a 0000 0001 00 00
    74 00 00 04 08 00000006 60 0000 02 00000001 11111111111141118111111111111111
       02 0b434f4e54524f4c4c4552 036831 2385 00 0000 0001 00 00 00 00""")


def leader_change_voters(*ids: int) -> tuple[LeaderChangeVoter, ...]:
    return tuple(LeaderChangeVoter(voter_id=id_) for id_ in ids)


VOTERS = KRaftVoters(
    voters=(
        KRaftVoter(
            voter_id=1,
            voter_directory_id=ONES,
            endpoints=(KRaftVoterEndpoint(name="CONTROLLER", host="h1", port=9093),),
            kraft_version_feature=KRaftVersionFeature(max_supported_version=1),
        ),
    )
)
CONTROL_RECORDS = [
    LeaderChange(
        leader_id=1,
        voters=leader_change_voters(1, 2, 3),
        granting_voters=leader_change_voters(1, 3),
    ),
    KRaftVersion(kraft_version=1),
    VOTERS,
]


def test_a_data_batch_is_the_one_of_kafka():
    assert build_batch([Record(value=b"hi")], epoch=1) == DATA_BATCH
    assert list(iter_records(DATA_BATCH)) == [Record(value=b"hi")]


def test_a_control_batch_is_the_one_of_kafka():
    batch = encode_control_batch(
        CONTROL_RECORDS, base_offset=0, epoch=1, timestamp_ms=1_700_000_000_000
    )
    assert batch == CONTROL_BATCH
    assert decode_control_batch(CONTROL_BATCH) == list(enumerate(CONTROL_RECORDS))


@pytest.mark.parametrize(
    ("record", "text"),
    [
        (SnapshotHeader(last_contained_log_timestamp=1_700_000_000_000), "0000 18bcfe56800 00"),
        (SnapshotFooter(), "0000 00"),
    ],
)
def test_snapshot_records_are_those_of_kafka(record, text):
    golden = bytes.fromhex(text.replace("18bcfe56800", "0000018bcfe56800"))
    assert encode_control_record(record)[1] == golden


def test_producer_states_stay_as_they_are_in_the_snapshots_that_there_are():
    record = ProducerStates(
        producers=(
            ProducerStatesProducer(
                producer_id=1 << 40,
                epoch=3,
                batches=(
                    ProducerStatesBatch(
                        first_sequence=7, last_sequence=9, base_offset=1 << 33, last_offset=258
                    ),
                ),
            ),
            ProducerStatesProducer(producer_id=5),
        )
    )
    key, value = encode_control_record(record)
    assert key == bytes.fromhex("0000 03e9")
    assert value == bytes.fromhex("""
        0000 03
        0000010000000000 0003 02 00000007 00000009 0000000200000000 0000000000000102 00 00
        0000000000000005 0000 01 00
        00""")
    assert decode_control_record(key, value) == record
