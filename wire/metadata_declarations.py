"""Kafka's metadata records: their fields, types and versions.

Taken over from the JSON definitions in kafka-metadata 4.4.0 (common/metadata/*.json; Apache License 2.0,
The Apache Software Foundation), in short: a record has its number, name and versions; a field its name,
type and versions, the versions in which it may be null, and its number if it is a tagged field; what is
further to the right are the fields of an array's elements. All versions are flexible (KIP-482).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Final

from quorumd.wire.schema import NO_VERSIONS, Versions, versions_from_text

DECLARATIONS: Final = """
0 RegisterBrokerRecord 0-4
  BrokerId int32 0+
  IsMigratingZkBroker bool 2+
  IncarnationId uuid 0+
  BrokerEpoch int64 0+
  EndPoints []BrokerEndpoint 0+
    Name string 0+
    Host string 0+
    Port uint16 0+
    SecurityProtocol int16 0+
  Features []BrokerFeature 0+
    Name string 0+
    MinSupportedVersion int16 0+
    MaxSupportedVersion int16 0+
  Rack string 0+ null=0+
  Fenced bool 0+
  InControlledShutdown bool 1+
  LogDirs []uuid 3+ tag=0
  CordonedLogDirs []uuid 4+ null=4+ tag=1
1 UnregisterBrokerRecord 0
  BrokerId int32 0+
  BrokerEpoch int64 0+
2 TopicRecord 0
  Name string 0+
  TopicId uuid 0+
3 PartitionRecord 0-2
  PartitionId int32 0+
  TopicId uuid 0+
  Replicas []int32 0+
  Isr []int32 0+
  RemovingReplicas []int32 0+
  AddingReplicas []int32 0+
  Leader int32 0+
  LeaderRecoveryState int8 0+ tag=0
  LeaderEpoch int32 0+
  PartitionEpoch int32 0+
  Directories []uuid 1+
  EligibleLeaderReplicas []int32 2+ null=2+ tag=1
  LastKnownElr []int32 2+ null=2+ tag=2
4 ConfigRecord 0
  ResourceType int8 0+
  ResourceName string 0+
  Name string 0+
  Value string 0+ null=0+
5 PartitionChangeRecord 0-2
  PartitionId int32 0+
  TopicId uuid 0+
  Isr []int32 0+ null=0+ tag=0
  Leader int32 0+ tag=1
  Replicas []int32 0+ null=0+ tag=2
  RemovingReplicas []int32 0+ null=0+ tag=3
  AddingReplicas []int32 0+ null=0+ tag=4
  LeaderRecoveryState int8 0+ tag=5
  Directories []uuid 1+ null=1+ tag=8
  EligibleLeaderReplicas []int32 2+ null=2+ tag=6
  LastKnownElr []int32 2+ null=2+ tag=7
7 FenceBrokerRecord 0
  Id int32 0+
  Epoch int64 0+
8 UnfenceBrokerRecord 0
  Id int32 0+
  Epoch int64 0+
9 RemoveTopicRecord 0
  TopicId uuid 0+
10 DelegationTokenRecord 0
  Owner string 0+
  Requester string 0+
  Renewers []string 0+
  IssueTimestamp int64 0+
  MaxTimestamp int64 0+
  ExpirationTimestamp int64 0+
  TokenId string 0+
11 UserScramCredentialRecord 0
  Name string 0+
  Mechanism int8 0+
  Salt bytes 0+
  StoredKey bytes 0+
  ServerKey bytes 0+
  Iterations int32 0+
12 FeatureLevelRecord 0
  Name string 0+
  FeatureLevel int16 0+
14 ClientQuotaRecord 0
  Entity []EntityData 0+
    EntityType string 0+
    EntityName string 0+ null=0+
  Key string 0+
  Value float64 0+
  Remove bool 0+
15 ProducerIdsRecord 0
  BrokerId int32 0+
  BrokerEpoch int64 0+
  NextProducerId int64 0+
17 BrokerRegistrationChangeRecord 0-3
  BrokerId int32 0+
  BrokerEpoch int64 0+
  Fenced int8 0+ tag=0
  InControlledShutdown int8 1+ tag=1
  LogDirs []uuid 2+ tag=2
  CordonedLogDirs []uuid 3+ null=3+ tag=3
18 AccessControlEntryRecord 0
  Id uuid 0+
  ResourceType int8 0+
  ResourceName string 0+
  PatternType int8 0+
  Principal string 0+
  Host string 0+
  Operation int8 0+
  PermissionType int8 0+
19 RemoveAccessControlEntryRecord 0
  Id uuid 0+
20 NoOpRecord 0
21 ZkMigrationStateRecord 0
  ZkMigrationState int8 0+
22 RemoveUserScramCredentialRecord 0
  Name string 0+
  Mechanism int8 0+
23 BeginTransactionRecord 0
  Name string 0+ null=0+ tag=0
24 EndTransactionRecord 0
25 AbortTransactionRecord 0
  Reason string 0+ null=0+ tag=0
26 RemoveDelegationTokenRecord 0
  TokenId string 0+
27 RegisterControllerRecord 0
  ControllerId int32 0+
  IncarnationId uuid 0+
  ZkMigrationReady bool 0+
  EndPoints []ControllerEndpoint 0+
    Name string 0+
    Host string 0+
    Port uint16 0+
    SecurityProtocol int16 0+
  Features []ControllerFeature 0+
    Name string 0+
    MinSupportedVersion int16 0+
    MaxSupportedVersion int16 0+
28 ClearElrRecord 0
  TopicName string 0+
29 UnregisterControllerRecord 0
  ControllerId int32 0+
"""


@dataclass(slots=True)
class Field:
    """A field; `type` without [] is a primitive one, or the name of a struct whose `fields` are its own."""

    name: str
    type: str
    is_array: bool
    versions: Versions
    nullable: Versions
    tag: int | None
    fields: list[Field] = field(default_factory=list)

    @property
    def json_name(self) -> str:
        """As in Kafka's own JSON."""
        return self.name[0].lower() + self.name[1:]


@dataclass(slots=True)
class Declaration:
    """A record type. `number` is what the record begins with; its api key, in Kafka's words."""

    number: int
    name: str
    versions: Versions
    fields: list[Field] = field(default_factory=list)


@functools.cache
def declarations() -> dict[int, Declaration]:
    """Every record type, by its number."""
    found: dict[int, Declaration] = {}
    inner: list[list[Field]] = []
    for line in DECLARATIONS.strip().splitlines():
        depth = (len(line) - len(line.lstrip())) // 2
        words = line.split()
        if not depth:
            number, name, versions = words
            declaration = Declaration(int(number), name, versions_from_text(versions))
            found[declaration.number] = declaration
            inner = [declaration.fields]
            continue
        made = _field(words)
        inner = inner[:depth]
        inner[-1].append(made)
        inner.append(made.fields)
    return found


def _field(words: list[str]) -> Field:
    name, type_name, versions, *rest = words
    more = dict(word.split("=") for word in rest)
    return Field(
        name=name,
        type=type_name.removeprefix("[]"),
        is_array=type_name.startswith("[]"),
        versions=versions_from_text(versions),
        nullable=versions_from_text(more["null"]) if "null" in more else NO_VERSIONS,
        tag=int(more["tag"]) if "tag" in more else None,
    )
