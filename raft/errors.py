"""Errors that leave the core, by Kafka's names; `quorumd.wire.error_codes` has their numbers."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class KafkaError(StrEnum):
    """The errors that the rules send, or act on when a peer sends them."""

    BROKER_NOT_AVAILABLE = "BROKER_NOT_AVAILABLE"
    DUPLICATE_VOTER = "DUPLICATE_VOTER"
    ELIGIBLE_LEADERS_NOT_AVAILABLE = "ELIGIBLE_LEADERS_NOT_AVAILABLE"
    FENCED_LEADER_EPOCH = "FENCED_LEADER_EPOCH"
    INCONSISTENT_CLUSTER_ID = "INCONSISTENT_CLUSTER_ID"
    INVALID_REPLICA_ASSIGNMENT = "INVALID_REPLICA_ASSIGNMENT"
    INVALID_REQUEST = "INVALID_REQUEST"
    INVALID_VOTER_KEY = "INVALID_VOTER_KEY"
    KAFKA_STORAGE_ERROR = "KAFKA_STORAGE_ERROR"
    NOT_ENOUGH_REPLICAS = "NOT_ENOUGH_REPLICAS"
    NOT_LEADER_OR_FOLLOWER = "NOT_LEADER_OR_FOLLOWER"
    NO_REASSIGNMENT_IN_PROGRESS = "NO_REASSIGNMENT_IN_PROGRESS"
    POSITION_OUT_OF_RANGE = "POSITION_OUT_OF_RANGE"
    REQUEST_TIMED_OUT = "REQUEST_TIMED_OUT"
    SNAPSHOT_NOT_FOUND = "SNAPSHOT_NOT_FOUND"
    UNKNOWN_LEADER_EPOCH = "UNKNOWN_LEADER_EPOCH"
    UNKNOWN_SERVER_ERROR = "UNKNOWN_SERVER_ERROR"
    UNSUPPORTED_VERSION = "UNSUPPORTED_VERSION"
    VOTER_NOT_FOUND = "VOTER_NOT_FOUND"


class Refusal(NamedTuple):
    """The reason why a request is not done, and what to do about it, in words for the operator or client."""

    error: KafkaError
    reason: str
