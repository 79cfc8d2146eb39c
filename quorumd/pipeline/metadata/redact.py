"""Secrets in metadata records, which are not shown by default.

SCRAM credentials: salt and keys. Configs: the value of every key that is not known to be harmless,
because Kafka's log does not say which ones are passwords, and plugins add keys of their own.
"""

from __future__ import annotations

import re
from typing import Any, Final

REDACTED: Final = "(redacted)"

_SCRAM_SECRETS = ("salt", "storedKey", "serverKey")
_SECRET_WORDS = re.compile(r"password|secret|credential|jaas|token|private|keystore|\.key\b", re.I)
_LISTENER_PREFIX = re.compile(r"^listener\.name\.[^.]+\.")
_HARMLESS_NAMES: Final = """
    cleanup.policy compression.type compression.gzip.level compression.lz4.level compression.zstd.level
    delete.retention.ms errors.deadletterqueue.group.enable file.delete.delay.ms flush.messages flush.ms
    follower.replication.throttled.replicas index.interval.bytes leader.replication.throttled.replicas
    local.retention.bytes local.retention.ms max.compaction.lag.ms max.message.bytes
    message.timestamp.after.max.ms message.timestamp.before.max.ms message.timestamp.type
    min.cleanable.dirty.ratio min.compaction.lag.ms min.insync.replicas preallocate remote.copy.disable
    remote.log.delete.on.disable remote.storage.enable retention.bytes retention.ms segment.bytes
    segment.index.bytes segment.jitter.ms segment.ms unclean.leader.election.enable

    background.threads follower.replication.throttled.rate leader.replication.throttled.rate
    log.cleaner.backoff.ms log.cleaner.dedupe.buffer.size log.cleaner.delete.retention.ms
    log.cleaner.io.buffer.load.factor log.cleaner.io.buffer.size log.cleaner.io.max.bytes.per.second
    log.cleaner.max.compaction.lag.ms log.cleaner.min.cleanable.ratio log.cleaner.min.compaction.lag.ms
    log.cleaner.threads log.cleanup.policy log.flush.interval.messages log.flush.interval.ms
    log.index.interval.bytes log.index.size.max.bytes log.local.retention.bytes log.local.retention.ms
    log.message.timestamp.after.max.ms log.message.timestamp.before.max.ms log.message.timestamp.type
    log.preallocate log.retention.bytes log.retention.hours log.retention.minutes log.retention.ms
    log.roll.hours log.roll.jitter.hours log.roll.jitter.ms log.roll.ms log.segment.bytes
    log.segment.delete.delay.ms max.connection.creation.rate max.connections max.connections.per.ip
    message.max.bytes num.io.threads num.network.threads num.recovery.threads.per.data.dir
    num.replica.fetchers producer.id.expiration.ms remote.fetch.max.wait.ms
    replica.alter.log.dirs.io.max.bytes.per.second transaction.partition.verification.enable

    consumer.heartbeat.interval.ms consumer.session.timeout.ms share.auto.offset.reset
    share.heartbeat.interval.ms share.record.lock.duration.ms share.session.timeout.ms
    streams.heartbeat.interval.ms streams.num.standby.replicas streams.session.timeout.ms
    connection.creation.rate consumer.byte.rate controller.mutation.rate producer.byte.rate
    request.percentage
"""
_HARMLESS: Final = frozenset(_HARMLESS_NAMES.split())


def redacted(name: str, fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of a record of this type, with REDACTED in place of what is or may be secret."""
    if name == "UserScramCredentialRecord":
        return {key: REDACTED if key in _SCRAM_SECRETS else value for key, value in fields.items()}
    if name == "ConfigRecord" and fields["value"] is not None and not _is_harmless(fields["name"]):
        return {**fields, "value": REDACTED}
    return fields


def _is_harmless(config: str) -> bool:
    key = _LISTENER_PREFIX.sub("", config)
    return key in _HARMLESS and not _SECRET_WORDS.search(config)
