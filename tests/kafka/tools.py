"""Which tool works against what: every line is run by test_tools.py, and docs/kafka.md has them as a table.

`python -m tests.kafka.tools --write` puts the table there.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import NamedTuple

DOCUMENT = Path(__file__).parents[2] / "docs" / "kafka.md"
BEGIN = "<!-- tools: made by python -m tests.kafka.tools --write -->\n"
END = "<!-- end of tools -->\n"

CONTROLLERS = "real controllers"
OBSERVER = "an observer"
QUORUM = "a quorumd quorum"
CONTROLLER_DIR = "a controller's directory"
CONTROLLER_DIRS = "all controllers' directories"
OBSERVER_DIR = "an observer's directory"
QUORUM_DIR = "a quorumd node's directory"
TABLES = "tables of an observer's directory"
THIS_HOST = "this host"

WITNESS_ID = 96
"""No observer of the tests with these controllers has it."""

KAFKAS = {
    "kafka-metadata-quorum": "org.apache.kafka.tools.MetadataQuorumCommand",
    "kafka-dump-log": "org.apache.kafka.tools.DumpLogSegments",
    "kafka-storage": "kafka.tools.StorageTool",
    "kafka-console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "kafka-console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "kafka-producer-perf-test": "org.apache.kafka.tools.ProducerPerformance",
    "kafka-consumer-perf-test": "org.apache.kafka.tools.ConsumerPerformance",
    "kafka-verifiable-producer": "org.apache.kafka.tools.VerifiableProducer",
    "kafka-e2e-latency": "org.apache.kafka.tools.EndToEndLatency",
    "kafka-get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "kafka-topics": "org.apache.kafka.tools.TopicCommand",
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "kafka-transactions": "org.apache.kafka.tools.TransactionsCommand",
    "kafka-leader-election": "org.apache.kafka.tools.LeaderElectionCommand",
    "kafka-reassign-partitions": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
}
NO_THROTTLES = "works, with this option: there are no throttles to clear"
ASCENDING = "works; list the ids in ascending order: `--verify` compares the order, too, and voters have none"
NOT_LIVE = "refused: controllers serve no consumers; read a directory"


class Case(NamedTuple):
    """A command as the table has it. `{dir}` stands for a directory, its files, or several directories,
    `{file}` for one that is written or a configuration, `{storage_id}` for that of a voter, and what begins
    with witness for the witness's.

    `code` is its exit code; `says` is in what it prints; `result` is what the table says of it.
    """

    tool: str
    command: str
    against: str
    code: int
    says: str
    result: str


CASES = (
    Case("quorumctl", "describe --status", CONTROLLERS, 0, "CurrentVoters:", "works"),
    Case("quorumctl", "describe --replication", CONTROLLERS, 0, "Observer", "works"),
    Case("quorumctl", "describe --status", OBSERVER, 0, "CurrentVoters:", "works: it asks the leader"),
    Case("quorumctl", "describe --replication", OBSERVER, 0, "Observer", "works: it asks the leader"),
    Case("quorumctl", "dump-log {dir}", CONTROLLER_DIR, 0, "control records, offsets", "works"),
    Case("quorumctl", "verify {dir}", CONTROLLER_DIR, 0, "sound", "works"),
    Case("quorumctl", "dump-log {dir}", OBSERVER_DIR, 0, "LeaderChange", "works"),
    Case("quorumctl", "verify {dir}", OBSERVER_DIR, 0, "sound", "works"),
    Case("quorumctl", "append x", CONTROLLERS, 1, "Error:", "refused: controllers take no records"),
    Case("quorumctl", "tail --from-beginning", CONTROLLERS, 1, "Error:", "refused: dump-log reads files"),
    Case("quorumctl", "append x", OBSERVER, 1, "Error:", "refused: an observer takes no records"),
    Case("quorumd-pipeline", "metadata {dir}", CONTROLLER_DIR, 0, '"type": "FeatureLevelRecord"', "works"),
    Case("quorumd-pipeline", "audit {dir}", CONTROLLER_DIRS, 0, "\nsound\n", "works"),
    Case("quorumd-pipeline", "batch --path {dir} --output {file}", CONTROLLER_DIR, 0, "to offset", "works"),
    Case("quorumd-pipeline", "metadata {dir}", OBSERVER_DIR, 0, '"type": "FeatureLevelRecord"', "works"),
    Case("quorumd-pipeline", "run --available-now --output {file}", CONTROLLERS, 1, "dump-log", NOT_LIVE),
    Case("quorumd-pipeline", "audit", CONTROLLERS, 1, "dump-log", NOT_LIVE),
    Case(
        "quorumd-pipeline",
        "report {dir} --output {file}",
        TABLES,
        0,
        "KiB",
        "works: leaders and voters of the controllers over time",
    ),
    Case("quorumd-pipeline", "doctor", THIS_HOST, 0, "session    ok", "works: it asks no quorum"),
    Case(
        "quorumctl",
        "add-voter --replica-id 90 --endpoint CONTROLLER://{observer}",
        CONTROLLERS,
        1,
        "doesn't support the finalized version",
        "refused: node 90 is an observer",
    ),
    Case(
        "quorumctl",
        "remove-voter --replica-id 90",
        CONTROLLERS,
        1,
        "Error:",
        "refused: node 90 is no voter",
    ),
    Case(
        "quorumctl",
        f"add-voter --replica-id {WITNESS_ID} --endpoint CONTROLLER://{{witness}}",
        CONTROLLERS,
        0,
        "is a voter now",
        f"works: node {WITNESS_ID} is a witness",
    ),
    Case(
        "quorumctl",
        f"remove-voter --replica-id {WITNESS_ID}",
        CONTROLLERS,
        0,
        "is no voter",
        f"works: node {WITNESS_ID} is a witness that votes",
    ),
    Case(
        "quorumctl",
        "export-kafka {dir} --node-id 1 --dry-run --no-brokers",
        OBSERVER_DIR,
        2,
        "a node runs on this directory",
        "works after the node's stop",
    ),
    Case(
        "quorumctl",
        "export-kafka {dir} --node-id 1 --dry-run",
        CONTROLLER_DIR,
        2,
        "does not hold",
        "refused: an observer's or a witness's is taken",
    ),
    Case(
        "kafka-metadata-quorum",
        "--command-config {witness_file} add-controller",
        CONTROLLERS,
        0,
        f"Added controller {WITNESS_ID}",
        "works for a witness; the file names its `storage.dir` as `log.dirs`",
    ),
    Case(
        "kafka-metadata-quorum",
        f"remove-controller --controller-id {WITNESS_ID} --controller-directory-id {{witness_storage_id}}",
        CONTROLLERS,
        0,
        f"KRaft controller {WITNESS_ID} with directory id",
        "works for a witness that votes",
    ),
    Case("kafka-metadata-quorum", "describe --replication", OBSERVER, 0, "Observer", "works"),
    Case("kafka-metadata-quorum", "describe --status", OBSERVER, 0, "CurrentVoters:", "works"),
    Case(
        "kafka-dump-log",
        "--cluster-metadata-decoder --files {dir}",
        OBSERVER_DIR,
        1,
        "NO_OP",
        "prints all, then stumbles over what is written ahead (exit code 1); not after the node's stop",
    ),
    Case("kafka-storage", "info -c {dir}", OBSERVER_DIR, 0, "Found log directory", "works"),
    Case(
        "kafka-dump-log",
        "--print-data-log --files {dir}",
        QUORUM_DIR,
        1,
        "payload: hello",
        "as an observer's",
    ),
    Case("kafka-storage", "info -c {dir}", QUORUM_DIR, 0, "Found log directory", "works"),
    Case("kafka-metadata-quorum", "describe --status", QUORUM, 0, "CurrentVoters:", "works"),
    Case("kafka-metadata-quorum", "describe --replication", QUORUM, 0, "Leader", "works"),
    Case(
        "kafka-metadata-quorum",
        "--command-config {file} add-controller",
        QUORUM,
        0,
        "Added controller 3",
        "works; the file names the observer's `storage.dir` as `log.dirs`",
    ),
    Case(
        "kafka-metadata-quorum",
        "remove-controller --controller-id 2 --controller-directory-id {storage_id}",
        QUORUM,
        0,
        "KRaft controller 2 with directory id",
        "works",
    ),
    Case("kafka-console-producer", "--topic __cluster_metadata", QUORUM, 0, "", "works"),
    Case(
        "kafka-console-consumer",
        "--topic __cluster_metadata --partition 0 --offset earliest --max-messages 1",
        QUORUM,
        0,
        "hello",
        "works, with a partition: there are no groups",
    ),
    Case(
        "kafka-producer-perf-test",
        "--topic __cluster_metadata --num-records 500 --record-size 100 --throughput -1",
        QUORUM,
        0,
        "500 records sent",
        "works",
    ),
    Case(
        "kafka-consumer-perf-test",
        "--topic __cluster_metadata --num-records 1",
        QUORUM,
        1,
        "GroupAuthorizationException",
        "refused: it reads in a group only, and there are none",
    ),
    Case(
        "kafka-verifiable-producer",
        "--topic __cluster_metadata --max-messages 3",
        QUORUM,
        0,
        '"sent":3,"acked":3',
        "works",
    ),
    Case(
        "kafka-e2e-latency",
        "--topic __cluster_metadata --num-records 3 --producer-acks all --record-size 100",
        QUORUM,
        1,
        "Avg latency:",
        "prints its figures, then ends in an error (exit code 1): it commits to a group, and there are none",
    ),
    Case(
        "kafka-get-offsets",
        "--topic __cluster_metadata --time earliest",
        QUORUM,
        0,
        "__cluster_metadata:0:0",
        "works",
    ),
    Case("kafka-topics", "--describe", QUORUM, 0, "Topic: __cluster_metadata", "works"),
    Case(
        "kafka-topics",
        "--create --topic another",
        QUORUM,
        1,
        "does not support CREATE_TOPICS",
        "refused: there is one topic",
    ),
    Case(
        "kafka-configs",
        "--describe --topic __cluster_metadata",
        QUORUM,
        0,
        "Dynamic configs for topic __cluster_metadata are:",
        "shows none: the configuration is in each node's file",
    ),
    Case(
        "kafka-consumer-groups",
        "--list",
        QUORUM,
        0,
        "does not support LIST_GROUPS",
        "refused, with exit code 0: there are no groups",
    ),
    Case(
        "kafka-transactions",
        "list",
        QUORUM,
        1,
        "does not support LIST_TRANSACTIONS",
        "refused: there are no transactions",
    ),
    Case(
        "kafka-leader-election",
        "--election-type preferred --topic __cluster_metadata --partition 0",
        QUORUM,
        1,
        "does not support ELECT_LEADERS",
        "refused: `quorumctl transfer-leader` does this",
    ),
    Case("kafka-reassign-partitions", "--list", QUORUM, 0, "No partition reassignments", "works"),
    Case(
        "kafka-reassign-partitions",
        "--reassignment-json-file {file} --execute",
        QUORUM,
        0,
        "Successfully started",
        ASCENDING,
    ),
    Case(
        "kafka-reassign-partitions",
        "--reassignment-json-file {file} --verify --preserve-throttles",
        QUORUM,
        0,
        "is completed",
        NO_THROTTLES,
    ),
    Case(
        "kafka-reassign-partitions",
        "--reassignment-json-file {file} --cancel --preserve-throttles",
        QUORUM,
        0,
        "partition reassignments",
        NO_THROTTLES,
    ),
)  # fmt: skip


def table() -> str:
    """The table of docs/kafka.md."""
    lines = ["| tool | command | against | result |", "|---|---|---|---|"]
    for case in CASES:
        command = re.sub(r"\{\w+\}", "...", case.command)
        lines.append(f"| `{case.tool}` | `{command}` | {case.against} | {case.result} |")
    return "\n".join(lines) + "\n"


def parts_of(text: str) -> tuple[str, str, str]:
    """What is before the table, the table, and what is behind it."""
    before, _, rest = text.partition(BEGIN)
    found, _, after = rest.partition(END)
    return before, found, after


if __name__ == "__main__" and "--write" in sys.argv:
    head, _, tail = parts_of(DOCUMENT.read_text())
    DOCUMENT.write_text(head + BEGIN + table() + END + tail)
