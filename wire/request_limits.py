"""Limits of a request by its api key: known before a byte of its body is read.

A node serves one partition, so that what a client can mean is small; what it may ask beyond that is limited
to what is read and done in a few milliseconds. Responses are not limited here: a client has asked
for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple


class RequestLimit(NamedTuple):
    """`elements`: array elements and tags, all of the body together. `size_bytes`: the body, whose
    header may have 32 KiB of a client id."""

    elements: int
    size_bytes: int


KIB: Final = 1 << 10
ONE_PARTITION: Final = RequestLimit(64, 16 * KIB)
"""For requests that mean one partition, one replica or none: with a few listeners or voters, and tags
of a later release."""
PARTITIONS: Final = RequestLimit(128, 64 * KIB)
"""For requests of clients that may have other topics in mind, too."""
NAMES: Final = RequestLimit(512, 160 * KIB)
"""For requests that list names: that many of the greatest length of a topic's."""
OF_KAFKAS: Final = RequestLimit(128, 256 * KIB)
"""For requests to Kafka's active controller: they are refused unread."""
RESPONSE_ELEMENTS_MAX: Final = 131_072

REQUEST_LIMITS: Final[Mapping[int, RequestLimit]] = MappingProxyType(
    {
        0: RequestLimit(256, 16 << 20),  # Produce: two batches of the largest log.max.batch.bytes
        1: PARTITIONS,  # Fetch
        2: PARTITIONS,  # ListOffsets
        3: NAMES,  # Metadata
        10: NAMES,  # FindCoordinator: all groups that an admin client is asked about
        18: ONE_PARTITION,  # ApiVersions
        22: ONE_PARTITION,  # InitProducerId
        23: PARTITIONS,  # OffsetForLeaderEpoch
        32: RequestLimit(256, 64 * KIB),  # DescribeConfigs: resources, and names of keys
        35: PARTITIONS,  # DescribeLogDirs
        45: PARTITIONS,  # AlterPartitionReassignments
        46: PARTITIONS,  # ListPartitionReassignments
        52: ONE_PARTITION,  # Vote
        53: ONE_PARTITION,  # BeginQuorumEpoch
        54: PARTITIONS,  # EndQuorumEpoch: every voter may be a successor
        55: ONE_PARTITION,  # DescribeQuorum
        56: OF_KAFKAS,  # AlterPartition
        57: ONE_PARTITION,  # UpdateFeatures
        58: OF_KAFKAS,  # Envelope
        59: ONE_PARTITION,  # FetchSnapshot
        60: ONE_PARTITION,  # DescribeCluster
        62: OF_KAFKAS,  # BrokerRegistration
        63: OF_KAFKAS,  # BrokerHeartbeat
        67: OF_KAFKAS,  # AllocateProducerIds
        70: OF_KAFKAS,  # ControllerRegistration
        73: OF_KAFKAS,  # AssignReplicasToDirs
        80: ONE_PARTITION,  # AddRaftVoter
        81: ONE_PARTITION,  # RemoveRaftVoter
        82: ONE_PARTITION,  # UpdateRaftVoter
        20001: ONE_PARTITION,  # TransferLeader
        20002: ONE_PARTITION,  # TakeSnapshot
    }
)


UNFINISHED_BYTES_MAX: Final = 256 * KIB
CUT_KEYS: Final = frozenset({0})
"""Of a request beyond its limit the beginning is kept, for a response: to Produce, MESSAGE_TOO_LARGE."""


def frame_bytes_max(api_key: int) -> int:
    """The largest request of this kind that is waited for until it is whole.

    A request that is whole sooner, and yet beyond its limit, can get a response.
    """
    limit = REQUEST_LIMITS.get(api_key, ONE_PARTITION)
    return max(limit.size_bytes, UNFINISHED_BYTES_MAX)
