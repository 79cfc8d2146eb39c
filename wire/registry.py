"""Requests that this project speaks: number, versions, header forms and message classes.

The message modules are imported when a class is asked for, so that a program pays only for what it
speaks. What a node advertises is decided elsewhere; here is what can be encoded and decoded.
Source: Apache Kafka 4.4, ApiKeys and the generated ApiMessageType; KIP-482 (header versions).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Final, NamedTuple

from quorumd.wire.errors import UnsupportedVersion
from quorumd.wire.schema import Message

PRODUCE_KEY: Final = 0
API_VERSIONS_KEY: Final = 18
ELECTION_KEYS: Final = (52, 53, 54)
"""Vote, BeginQuorumEpoch, EndQuorumEpoch."""
FIRST_OWN_KEY: Final = 20_000
"""From here on requests are this project's own: Kafka's software need not hear of them."""
CONTROLLER_KEYS: Final = frozenset((56, 58, 62, 63, 67, 70, 73))
"""Api keys that Kafka's brokers and controllers ask of the active controller, which no node here ever is."""


class ApiSpec(NamedTuple):
    """A request and its response; versions are inclusive, flexible ones start at `flexible_from`."""

    key: int
    name: str
    min_version: int
    max_version: int
    flexible_from: int
    module: str

    @property
    def request(self) -> type[Message]:
        return self._class("Request")

    @property
    def response(self) -> type[Message]:
        return self._class("Response")

    def _class(self, suffix: str) -> type[Message]:
        module = import_module(f"quorumd.wire.messages.{self.module}")
        found: type[Message] = getattr(module, self.name + suffix)
        return found


APIS: Final[Mapping[int, ApiSpec]] = MappingProxyType(
    {
        spec.key: spec
        for spec in (
            ApiSpec(PRODUCE_KEY, "Produce", 3, 13, 9, "produce"),
            ApiSpec(1, "Fetch", 4, 18, 12, "fetch"),
            ApiSpec(2, "ListOffsets", 1, 11, 6, "list_offsets"),
            ApiSpec(3, "Metadata", 0, 13, 9, "metadata"),
            ApiSpec(10, "FindCoordinator", 0, 6, 3, "find_coordinator"),
            ApiSpec(API_VERSIONS_KEY, "ApiVersions", 0, 5, 3, "api_versions"),
            ApiSpec(22, "InitProducerId", 0, 5, 2, "init_producer_id"),
            ApiSpec(23, "OffsetForLeaderEpoch", 2, 4, 4, "offset_for_leader_epoch"),
            ApiSpec(32, "DescribeConfigs", 1, 4, 4, "describe_configs"),
            ApiSpec(35, "DescribeLogDirs", 1, 5, 2, "describe_log_dirs"),
            ApiSpec(45, "AlterPartitionReassignments", 0, 1, 0, "alter_partition_reassignments"),
            ApiSpec(46, "ListPartitionReassignments", 0, 0, 0, "list_partition_reassignments"),
            ApiSpec(52, "Vote", 0, 2, 0, "vote"),
            ApiSpec(53, "BeginQuorumEpoch", 0, 1, 1, "begin_quorum_epoch"),
            ApiSpec(54, "EndQuorumEpoch", 0, 1, 1, "end_quorum_epoch"),
            ApiSpec(55, "DescribeQuorum", 0, 2, 0, "describe_quorum"),
            ApiSpec(56, "AlterPartition", 2, 3, 0, "alter_partition"),
            ApiSpec(57, "UpdateFeatures", 0, 2, 0, "update_features"),
            ApiSpec(58, "Envelope", 0, 0, 0, "envelope"),
            ApiSpec(59, "FetchSnapshot", 0, 1, 0, "fetch_snapshot"),
            ApiSpec(60, "DescribeCluster", 0, 2, 0, "describe_cluster"),
            ApiSpec(62, "BrokerRegistration", 0, 4, 0, "broker_registration"),
            ApiSpec(63, "BrokerHeartbeat", 0, 2, 0, "broker_heartbeat"),
            ApiSpec(67, "AllocateProducerIds", 0, 0, 0, "allocate_producer_ids"),
            ApiSpec(70, "ControllerRegistration", 0, 0, 0, "controller_registration"),
            ApiSpec(73, "AssignReplicasToDirs", 0, 0, 0, "assign_replicas_to_dirs"),
            ApiSpec(80, "AddRaftVoter", 0, 1, 0, "add_raft_voter"),
            ApiSpec(81, "RemoveRaftVoter", 0, 0, 0, "remove_raft_voter"),
            ApiSpec(82, "UpdateRaftVoter", 0, 0, 0, "update_raft_voter"),
            ApiSpec(20001, "TransferLeader", 0, 0, 0, "transfer_leader"),
            ApiSpec(20002, "TakeSnapshot", 0, 0, 0, "take_snapshot"),
        )
    }
)


def api(key: int) -> ApiSpec:
    """The API with this number. Raises UnsupportedVersion if there is none."""
    spec = APIS.get(key)
    if spec is None:
        raise UnsupportedVersion(f"there is no request with the api key {key}")
    return spec


def response_header_version(key: int, version: int) -> int:
    """1 (with a tag section) for flexible versions, else 0, and always 0 for ApiVersions.

    Its reader may not know yet what the node speaks. Raises UnsupportedVersion.
    """
    if key == API_VERSIONS_KEY:
        return 0
    return 1 if version >= api(key).flexible_from else 0


def warm(keys: Iterable[int]) -> None:
    """Compile the codecs of these APIs now: requests and responses, at the newest version.

    For a process in which a first Vote or Fetch must not wait for a compiler: a codec takes about
    2 ms, and the first of all 30 ms more.
    """
    from quorumd.wire.codec import codec_for

    for key in keys:
        spec = api(key)
        for message in (spec.request, spec.response):
            codec_for(message, spec.max_version)


def warm_all() -> Iterator[None]:
    """Compile all codecs, one a step of 3 ms at most, the newest versions first. Together they take 0.4 s."""
    from quorumd.wire.codec import codec_for

    ages = sorted(
        (spec.max_version - version, spec.key)
        for spec in APIS.values()
        for version in range(spec.min_version, spec.max_version + 1)
    )
    for age, key in ages:
        spec = APIS[key]
        for message in (spec.request, spec.response):
            codec_for(message, spec.max_version - age)
            yield
