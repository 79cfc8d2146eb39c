"""Kafka's error codes as sentences for users, and which of them are worth another try.

Source of the meanings: Apache Kafka 4.3, org.apache.kafka.common.protocol.Errors.
"""

from __future__ import annotations

from quorumd.wire.error_codes import ErrorCode

LEADER_MOVED = frozenset(
    {
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
    }
)
"""The leader is another node or not known yet: find it and send the request again."""

RETRIABLE = LEADER_MOVED | {
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.OFFSET_NOT_AVAILABLE,
}
"""The same request may succeed a little later, possibly at another node."""

SPEAKS_PLAINTEXT = (
    "speaks plaintext: set security.protocol=PLAINTEXT, or name the port of a listener with TLS"
)
SPEAKS_TLS = (
    "speaks TLS: set security.protocol=SSL, ssl.truststore.location to the CA's certificate and, if the "
    "quorum asks for one, ssl.keystore.location to a key and its certificate (`quorumctl --command-config "
    "FILE`, or `security=` of the library)"
)

_SENTENCES = {
    ErrorCode.UNKNOWN_SERVER_ERROR: "the server failed; its log says why",
    ErrorCode.OFFSET_OUT_OF_RANGE: "the offset is not in the log; `quorumctl tail --from-beginning` "
    "reads from its start",
    ErrorCode.CORRUPT_MESSAGE: "the records arrived damaged; try again, and if it stays so look for "
    "a faulty network device in between",
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "the server has no partition __cluster_metadata-0; is it "
    "a broker of a Kafka cluster? Name a controller or a quorumd node",
    ErrorCode.LEADER_NOT_AVAILABLE: "there is no leader at the moment; more than half of the voters "
    "must be up",
    ErrorCode.NOT_LEADER_OR_FOLLOWER: "the node is not the leader (any more); try again",
    ErrorCode.REQUEST_TIMED_OUT: "the record was not committed in time; are more than half of the "
    "voters up? `quorumctl describe --replication` shows them",
    ErrorCode.MESSAGE_TOO_LARGE: "a batch is larger than the quorum takes (log.max.batch.bytes, "
    "1 MiB by default); send smaller records, or smaller batches (`append --batch-bytes`)",
    ErrorCode.NOT_ENOUGH_REPLICAS: "too few voters are up to commit anything; a new quorum waits until it "
    "has seen each of them once",
    ErrorCode.INVALID_REQUIRED_ACKS: "the server refuses this kind of acknowledgement",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "this client may not use the log",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "consumer groups don't exist here; read by offset instead",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "this client may not do that",
    ErrorCode.INVALID_TIMESTAMP: "a record's time is more than an hour ahead of the server's clock; "
    "compare the clocks of this host and the nodes",
    ErrorCode.UNSUPPORTED_VERSION: "the server does not support this request in a version that "
    "quorumctl knows",
    ErrorCode.INVALID_REQUEST: "the server calls the request invalid; is it another software than "
    "quorumd?",
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER: "the quorum has not got the records before this one; "
    "check with `quorumctl tail` what arrived and append the rest",
    ErrorCode.INVALID_PRODUCER_EPOCH: "another producer took over this one's id; append again",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "transactions don't exist here; append without",
    ErrorCode.KAFKA_STORAGE_ERROR: "the leader cannot write to its disk; is it full? Its log and "
    "/status name the directory",
    ErrorCode.UNKNOWN_PRODUCER_ID: "the quorum has forgotten this producer; check with `quorumctl "
    "tail` what arrived and append the rest",
    ErrorCode.FENCED_LEADER_EPOCH: "the leader has changed; try again",
    ErrorCode.UNKNOWN_LEADER_EPOCH: "the node has not heard of the newest leader yet; try again",
    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE: "the server does not take this compression; choose "
    "another one with --compression",
    ErrorCode.OFFSET_NOT_AVAILABLE: "a new leader has not committed anything yet (in a new quorum it waits "
    "until it has seen every voter once); try again",
    ErrorCode.INVALID_RECORD: "the records break a rule of the log",
    ErrorCode.UNKNOWN_TOPIC_ID: "the server has no topic with the id of __cluster_metadata",
    ErrorCode.INCONSISTENT_CLUSTER_ID: "the server belongs to another cluster",
}


def explain(error: ErrorCode) -> str:
    """The meaning of a code and what to do about it, as a clause without a full stop."""
    sentence = _SENTENCES.get(error)
    if sentence is not None:
        return sentence
    return f"the server responded with {error.name.lower().replace('_', ' ')}"
