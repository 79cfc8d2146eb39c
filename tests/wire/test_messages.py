"""Every message in every version: against kio, against itself, and the rules of encoding."""

from __future__ import annotations

import dataclasses
import io
import keyword
import subprocess
import sys
from functools import partial
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.serial import entity_reader, entity_writer

from quorumd.wire.codec import codec_for, decode, encode
from quorumd.wire.errors import MalformedMessage, UnsupportedVersion
from quorumd.wire.messages.api_versions import ApiVersionsRequest
from quorumd.wire.messages.end_quorum_epoch import (
    EndQuorumEpochRequest,
    EndQuorumEpochRequestPartition,
    EndQuorumEpochRequestPreferredCandidate,
    EndQuorumEpochRequestTopic,
)
from quorumd.wire.messages.fetch import (
    FetchRequest,
    FetchRequestPartition,
    FetchRequestReplicaState,
    FetchRequestTopic,
)
from quorumd.wire.messages.metadata import MetadataRequest
from quorumd.wire.messages.vote import VoteRequest, VoteRequestPartition, VoteRequestTopic
from quorumd.wire.registry import APIS, FIRST_OWN_KEY
from quorumd.wire.schema import Kind, Versions
from tests.wire.wire_values import (
    ALL_BODIES,
    BODY_IDS,
    examples,
    has_own,
    kio_class,
    messages,
    to_kio,
)

ROOT = Path(__file__).resolve().parents[2]
LATER_THAN_KIO = {(18, 5)}
"""Api key and version: in Kafka 4.4, which the tests beside its controllers speak."""
KIOS = [
    (cls, version)
    for cls, version in ALL_BODIES
    if (key := cls.wire_spec.api_key) < FIRST_OWN_KEY and (key, version) not in LATER_THAN_KIO
]
EACH_BODY = pytest.mark.parametrize(
    ("cls", "version"),
    KIOS,
    ids=[name for name, body in zip(BODY_IDS, ALL_BODIES, strict=True) if body in KIOS],
)
"""Kafka's own requests: others know nothing of this project's."""
EACH_OWN_BODY = pytest.mark.parametrize(
    ("cls", "version"),
    [body for body in ALL_BODIES if has_own(body[0]) or body not in KIOS],
    ids=[
        name
        for name, body in zip(BODY_IDS, ALL_BODIES, strict=True)
        if has_own(body[0]) or body not in KIOS
    ],
)
"""Requests of this project, those of Kafka that carry its tags, and those that kio does not know."""
FEW = examples(4)


def test_headers_and_versions_are_those_that_the_messages_declare() -> None:
    for key, spec in APIS.items():
        for declared in (spec.request.wire_spec, spec.response.wire_spec):
            assert (declared.api_key, declared.versions) == (
                key,
                Versions(spec.min_version, spec.max_version),
            ), spec.name
            assert declared.flexible.first == spec.flexible_from, spec.name


@EACH_BODY
@FEW
@given(data=st.data())
def test_bytes_are_those_of_an_independent_encoder_and_read_back_as_the_same_message(
    cls, version, data
):
    message = data.draw(messages(cls, version, own_tags=False))
    kio_cls = kio_class(cls, version)
    kio_message = to_kio(message, kio_cls, version)
    buffer = io.BytesIO()
    entity_writer(kio_cls)(buffer, kio_message)
    plain = io.BytesIO()
    codec_for(cls, version).construct._build(message, plain, None, "")

    encoded = encode(message, version)

    assert encoded == buffer.getvalue()
    assert encoded == plain.getvalue()
    read, size = entity_reader(kio_cls)(encoded, 0)
    assert read == kio_message
    assert size == len(encoded)
    assert decode(cls, version, encoded) == message
    framed = memoryview(b"before" + encoded + b"behind")
    assert decode(cls, version, framed, 6) == message


@EACH_OWN_BODY
@examples(20)
@given(data=st.data())
def test_what_is_our_own_reads_back_as_the_same_message(cls, version, data):
    message = data.draw(messages(cls, version))
    plain = io.BytesIO()
    codec_for(cls, version).construct._build(message, plain, None, "")
    encoded = encode(message, version)
    assert encoded == plain.getvalue()
    assert decode(cls, version, encoded) == message


@EACH_BODY
def test_a_message_at_its_defaults_is_written_as_kio_writes_it(cls, version):
    message = cls()
    buffer = io.BytesIO()
    kio_cls = kio_class(cls, version)
    entity_writer(kio_cls)(buffer, to_kio(message, kio_cls, version))
    assert encode(message, version) == buffer.getvalue()
    assert decode(cls, version, buffer.getvalue()) == message


def test_a_message_is_a_value_that_nothing_changes():
    request, same, other = VoteRequest(voter_id=3), VoteRequest(voter_id=3), VoteRequest(voter_id=4)
    assert (request, hash(request)) == (same, hash(same))
    assert request != other
    assert VoteRequestPartition() != VoteRequestTopic()
    assert repr(request) == "VoteRequest(cluster_id=None, voter_id=3, topics=())"
    assert dataclasses.replace(request, voter_id=4) == other
    for change in (partial(setattr, request, "voter_id", 4), partial(delattr, request, "voter_id")):
        with pytest.raises(dataclasses.FrozenInstanceError, match="voter_id"):
            change()
    for give in (partial(VoteRequest, 3), partial(VoteRequest, voter=3)):
        with pytest.raises(TypeError):
            give()
    assert not hasattr(request, "__dict__")


def test_a_field_that_the_version_lacks_is_dropped_if_ignorable_and_refused_if_not():
    at_default = encode(VoteRequest(), 0)
    assert encode(VoteRequest(voter_id=3), 0) == at_default

    partition = VoteRequestPartition(pre_vote=True)
    request = VoteRequest(topics=(VoteRequestTopic(topic_name="t", partitions=(partition,)),))
    with pytest.raises(UnsupportedVersion, match=r"VoteRequest version 1.*pre_vote"):
        encode(request, 1)
    assert decode(VoteRequest, 2, encode(request, 2)) == request


def test_an_encoder_keeps_the_one_of_two_lists_that_the_version_has():
    partition = EndQuorumEpochRequestPartition(
        preferred_successors=(2, 3),
        preferred_candidates=(EndQuorumEpochRequestPreferredCandidate(candidate_id=2),),
    )
    request = EndQuorumEpochRequest(topics=(EndQuorumEpochRequestTopic(partitions=(partition,)),))

    (topic,) = decode(EndQuorumEpochRequest, 0, encode(request, 0)).topics
    assert topic.partitions[0].preferred_successors == (2, 3)
    assert topic.partitions[0].preferred_candidates == ()
    (topic,) = decode(EndQuorumEpochRequest, 1, encode(request, 1)).topics
    assert topic.partitions[0].preferred_successors == ()
    assert topic.partitions[0].preferred_candidates == partition.preferred_candidates


def test_null_is_refused_in_a_version_that_has_no_form_for_it():
    assert decode(MetadataRequest, 1, encode(MetadataRequest(topics=None), 1)).topics is None
    with pytest.raises(UnsupportedVersion, match="null"):
        encode(MetadataRequest(topics=None), 0)


def test_a_version_that_does_not_exist_is_refused_both_ways():
    with pytest.raises(UnsupportedVersion, match="VoteRequest has versions 0 to 2, not 3"):
        encode(VoteRequest(), 3)
    with pytest.raises(UnsupportedVersion, match="FetchRequest has versions 4 to 18, not 3"):
        decode(FetchRequest, 3, b"")


@pytest.mark.parametrize(
    "message",
    [
        VoteRequest(voter_id=2**31),
        VoteRequest(cluster_id="x" * 32768),
        VoteRequest(cluster_id="\ud800"),
        VoteRequest(topics=(VoteRequestTopic(topic_name=None),)),
        VoteRequest(topics=3),
        VoteRequest(cluster_id=7),
    ],
    ids=["too large", "too long", "not unicode", "null", "not an array", "not a string"],
)
def test_a_value_that_does_not_fit_its_type_is_refused(message):
    with pytest.raises(MalformedMessage, match="VoteRequest version 2"):
        encode(message, 2)


# What follows are the tolerances and refusals of Kafka's own reader.


def vote_request_with(cluster_id: bytes, topics: bytes) -> bytes:
    return cluster_id + bytes.fromhex("00000002") + topics + b"\0"


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        ("00", None),
        ("ffffffff0f", None),  # 2^32-1 - 1 as a signed number
        ("8180808008", None),
        ("8000", None),  # longer than needed
        ("828000" + "61", "a"),
        ("01", ""),
        ("03c328", "�("),
        ("04eda080", "\ufffd\ufffd\ufffd"),
    ],
)
def test_compact_strings_are_read_as_kafka_reads_them(raw, value):
    data = vote_request_with(bytes.fromhex(raw), b"\1")
    assert decode(VoteRequest, 2, data).cluster_id == value


@pytest.mark.parametrize(
    "raw",
    [
        "ffffffffff01",  # a sixth byte
        "80808080",  # cut
        "8080808008",  # 2^31-1 bytes
        "05616263",  # one byte more than there is before the next field, then cut
        "818002" + "61" * 32768,
    ],
)
def test_compact_strings_that_kafka_refuses_are_refused(raw):
    with pytest.raises(MalformedMessage, match="VoteRequest version 2"):
        decode(VoteRequest, 2, bytes.fromhex(raw))


def test_a_null_array_is_refused_where_null_is_not_allowed():
    with pytest.raises(MalformedMessage, match="null"):
        decode(VoteRequest, 2, vote_request_with(b"\0", b"\0"))


def test_a_negative_count_or_length_of_the_old_form_is_null():
    assert decode(MetadataRequest, 1, bytes.fromhex("fffffff6")).topics is None
    with pytest.raises(MalformedMessage):
        decode(MetadataRequest, 0, bytes.fromhex("ffffffff"))


def test_any_byte_but_zero_is_true():
    data = bytes.fromhex("00000000" + "07")
    assert decode(MetadataRequest, 4, data).allow_auto_topic_creation is True


def test_unknown_tags_are_skipped_and_known_ones_come_in_any_order():
    body = bytes.fromhex("0000000000000000000000000000000000ffffffff010101")
    tags = bytes.fromhex("03 63 02 beef 01 0d 00000002ffffffffffffffff00 00 04 04616263")
    request = decode(FetchRequest, 17, body + tags)
    assert request.cluster_id == "abc"
    assert request.replica_state == FetchRequestReplicaState(replica_id=2)


@pytest.mark.parametrize(
    "tags",
    [
        "01 00 05 04616263",  # a size that is not that of the data
        "01 63 05 beef",  # a size beyond the message
        "ffff7f",  # more tags than bytes
        "01",
        "0100",
    ],
)
def test_tags_with_a_wrong_size_or_count_are_refused(tags):
    body = bytes.fromhex("0000000000000000000000000000000000ffffffff010101")
    with pytest.raises(MalformedMessage, match="FetchRequest version 17"):
        decode(FetchRequest, 17, body + bytes.fromhex(tags))


def test_a_tag_count_that_is_negative_as_a_signed_number_means_no_tags():
    assert decode(ApiVersionsRequest, 3, bytes.fromhex("0101ffffffff0f")) == ApiVersionsRequest()


def test_messages_are_immutable_values_with_slots():
    request = VoteRequest(voter_id=1)
    with pytest.raises(AttributeError):
        request.voter_id = 2
    assert not hasattr(request, "__dict__")
    assert request == VoteRequest(voter_id=1)
    assert hash(request) == hash(VoteRequest(voter_id=1))
    assert VoteRequestPartition().replica_directory_id == UUID(int=0)


@pytest.mark.live
def test_importing_messages_compiles_nothing_and_warming_compiles_what_is_asked_for():
    script = """
import sys, quorumd.wire.codec, quorumd.wire.headers, quorumd.wire.framing, quorumd.wire.registry
import quorumd.wire.messages.vote, quorumd.wire.messages.fetch
assert "construct" not in sys.modules
assert not {"lz4", "snappy", "zstandard"} & set(sys.modules)
assert quorumd.wire.codec._codecs == {}
quorumd.wire.registry.warm([52])
assert [(cls.__name__, version) for cls, version in quorumd.wire.codec._codecs] == [
    ("VoteRequest", 2), ("VoteResponse", 2)]
for _ in quorumd.wire.registry.warm_all():
    pass
assert len([cls for cls, _ in quorumd.wire.codec._codecs if cls.__name__.startswith("Vote")]) == 6
"""
    run = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def test_every_declared_field_can_be_a_name_in_the_compiled_source():
    # The names that generated code uses for itself would otherwise hide a field.
    own = {"io", "this", "obj", "record", "count", "outer", "rest", "tag", "end"}

    def names(cls):
        for spec in cls.wire_spec.fields:
            yield spec.name
            if not isinstance(spec.of, Kind):
                yield from names(spec.of)

    declared = {name for cls, _ in ALL_BODIES for name in names(cls)}
    assert not declared & own
    assert not declared & set(keyword.kwlist)


@pytest.mark.parametrize(
    ("said", "since"), [({"replica_directory_id": UUID(int=9)}, 17), ({"high_watermark": 5}, 18)]
)
def test_what_older_versions_of_a_fetch_do_not_know_is_left_out_of_them(
    said: dict[str, object], since: int
) -> None:
    def fetch(**said: object) -> FetchRequest:
        partition = FetchRequestPartition(**said)  # type: ignore[arg-type]  # fields of any type
        return FetchRequest(topics=(FetchRequestTopic(partitions=(partition,)),))

    for version in range(12, 19):
        is_left_out = encode(fetch(**said), version) == encode(fetch(), version)
        assert is_left_out == (version < since)
