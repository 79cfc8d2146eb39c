"""The documents' commands that change the voters run as they are written, on a quorum with nodes for it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.shell import environment, run_shell
from tests.docs.test_commands import DOCUMENTS, blocks_of, entry_of, program_of, statements_of
from tests.support.live_cluster import Cluster

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]

QUICK = {"quorum.fetch.timeout.ms": 600, "quorum.election.timeout.ms": 300}
WITNESS = "quorumctl add-voter --bootstrap-server controller1:9093 "
"""It joins a real Kafka quorum: tests/kafka."""
COMMANDS = ("add-voter", "remove-voter", "replace-voter", "reassign")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Three voters and three observers run."""
    cluster = Cluster(tmp_path, observers=3, settings=QUICK)
    try:
        cluster.format()
        cluster.start(*cluster.voters)
        cluster.wait_ready(*cluster.voters)
        cluster.stop_all()
        # As operations.md says: quorum.voters is for the first start, and permits no other voters.
        servers = f"quorum.bootstrap.servers: {cluster.bootstrap}"
        for path in map(cluster.config_path, cluster.ids):
            path.write_text(re.sub(r"(?m)^quorum\.voters: .*", servers, path.read_text()))
        cluster.start()
        cluster.wait_ready()
        yield cluster
    finally:
        cluster.kill_all()


def voters(cluster: Cluster) -> set[int]:
    """Those of the leader."""
    described = cluster.describe(cluster.wait_leader())
    return set() if described is None else {each.replica_id for each in described.current_voters}


def written() -> tuple[set[str], list[list[str]]]:
    """Lines and programs of the documents that change voters."""
    blocks = [block for path in DOCUMENTS for block in blocks_of(path)]
    lines = {line for block in blocks for line in statements_of(block)}
    starts = tuple(f"quorumctl {name}" for name in COMMANDS)
    programs = [block for block in blocks if ".add_voter(" in "".join(block)]
    return {line for line in lines if line.startswith(starts)}, programs


def test_voters_change_as_the_documents_say(cluster: Cluster) -> None:
    lines, programs = written()
    lines = {line for line in lines if not line.startswith(WITNESS)}
    environ = {**environment(), "QUORUM_BOOTSTRAP_SERVERS": cluster.bootstrap}
    ran = set()

    def run(line: str) -> str:
        ran.add(line)
        done = run_shell(line, folder=cluster.folder, environ=environ, timeout_s=60)
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{cluster.logs()}"
        return done.stdout

    for program in programs:
        (cluster.folder / "program.py").write_text(program_of(program, cluster.bootstrap))
        run("python program.py")
        assert voters(cluster) == {1, 2, 3, 4}
        run("quorumctl remove-voter --replica-id 4")
    run("quorumctl add-voter --replica-id 4")
    assert voters(cluster) == {1, 2, 3, 4}
    run("quorumctl remove-voter --replica-id 1")
    assert voters(cluster) == {2, 3, 4}
    cluster.stop(3)
    cluster.new_disk(3)
    cluster.start(3)
    cluster.wait_ready(3)
    run("quorumctl replace-voter 3")
    assert voters(cluster) == {2, 3, 4}
    # A reassignment that cannot end is there to be shown, and to be cancelled.
    cluster.stop(6)
    run("quorumctl reassign --voters 4,6")
    assert "Target:     4, 6\n" in run("quorumctl reassign")
    run("quorumctl reassign --cancel")
    cluster.start(6)
    cluster.wait_ready(6)
    run("quorumctl reassign --voters 4,5,6 --watch")
    assert voters(cluster) == {4, 5, 6}
    run("quorumctl reassign --watch")
    assert lines - ran == set()
    assert all(entry_of(line) for line in lines), (
        "tests/docs/test_commands.py leaves them to this test"
    )
