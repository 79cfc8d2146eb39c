"""quorumctl changes who votes and who leads, on real daemons that are written to and killed meanwhile."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quorumd.raft.types import uuid_from_text, uuid_to_text
from quorumd.server.translate.voter_changes import ADD_VOTER, REMOVE_VOTER
from quorumd.storage.meta_properties import random_storage_id
from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.messages.add_raft_voter import (
    AddRaftVoterRequest,
    AddRaftVoterRequestListener,
    AddRaftVoterResponse,
)
from quorumd.wire.messages.remove_raft_voter import RemoveRaftVoterRequest, RemoveRaftVoterResponse
from tests.support import commands
from tests.support.commands import Done
from tests.support.live_cluster import Cluster, running_cluster
from tests.support.load import Load
from tests.support.raw_client import RawClient, frame, request

QUICK = {"quorum.fetch.timeout.ms": 600, "quorum.election.timeout.ms": 300}
FAILED, INTERRUPTED = 1, 130
QUORUMCTL = Path(sys.executable).with_name("quorumctl")
SILENT = re.compile(r"  (fetched|has not fetched) ")
"""What describe says of a replica from which the leader hears nothing, or never has."""


@pytest.fixture
def nodes(folder: Path) -> Iterator[Cluster]:
    """Voters 1 to 3 run; 4 to 6 are formatted to join. Nobody has quorum.voters: any id may vote."""
    cluster = Cluster(folder, size=3, observers=3, settings=QUICK)
    folder.mkdir(parents=True)
    ids = {node: uuid_to_text(random_storage_id()) for node in cluster.voters}
    voters = ",".join(f"{node}@{cluster.address(node)}:{ids[node]}" for node in ids)
    servers = ",".join(map(cluster.address, cluster.voters))
    for node in cluster.ids:
        cluster.write_config(node, {"quorum.bootstrap.servers": servers})
        path = cluster.config_path(node)
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(line for line in lines if not line.startswith("quorum.voters:")))
        cluster.format_one(node, *(["--initial-voters", voters] if node in ids else []))
    try:
        cluster.start(*cluster.voters)
        cluster.wait_ready()
        yield cluster
    finally:
        cluster.kill_all()


def quorumctl(cluster: Cluster, command: str, *arguments: object) -> Done:
    return commands.quorumctl(command, "-b", cluster.bootstrap, *arguments)


def done(cluster: Cluster, command: str, *arguments: object) -> str:
    """What a command prints that succeeds."""
    found = quorumctl(cluster, command, *arguments)
    assert found.code == 0, f"{command} {arguments}: {found.err}\n{cluster.logs()}"
    return found.out


def refused(cluster: Cluster, command: str, *arguments: object) -> str:
    """The one message of a command that fails."""
    found = quorumctl(cluster, command, *arguments)
    errors = [line for line in found.err.splitlines() if line.startswith("Error: ")]
    assert (found.code, len(errors)) == (FAILED, 1), found
    assert "Traceback" not in found.err
    return found.err


@contextmanager
def running(cluster: Cluster, command: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """The command in a process of its own."""
    process = subprocess.Popen(
        [str(QUORUMCTL), command, "-b", cluster.bootstrap, *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def described(cluster: Cluster) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(done(cluster, "describe", "--output", "json"))
    return found


def voter_ids(cluster: Cluster) -> list[int]:
    return [voter["replica_id"] for voter in described(cluster)["voters"]]


def start_observers(cluster: Cluster, *nodes: int) -> None:
    """Returns when the leader knows where they are reached."""
    cluster.start(*nodes)

    def are_known() -> bool:
        observers = described(cluster)["observers"]
        return set(nodes) <= {each["replica_id"] for each in observers if each["endpoints"]}

    cluster.wait_for(are_known, f"observers {nodes}")


def wait_silent(cluster: Cluster, node: int) -> None:
    """Returns when the leader has heard no fetch of the node for longer than the timeouts."""

    def is_silent() -> bool:
        rows = cluster.status(cluster.wait_leader())["replicas"]
        fetched_ms = {row["id"]: row["last_fetch_ms"] for row in rows}
        return max(fetched_ms.values()) - fetched_ms[node] > max(QUICK.values())

    cluster.wait_for(is_silent, f"the silence of {node}")


# -- one change


def addition_of_4(nodes: Cluster) -> AddRaftVoterRequest:
    """It waits long for a replica that does not run."""
    at = AddRaftVoterRequestListener(name="CONTROLLER", host="127.0.0.1", port=nodes.port(4))
    return AddRaftVoterRequest(
        timeout_ms=120_000, voter_id=4, voter_directory_id=random_storage_id(), listeners=(at,)
    )


def test_voters_come_and_go_while_the_quorum_is_written_to(nodes: Cluster) -> None:
    with Load(nodes) as load:
        load.wait_progress()
        start_observers(nodes, 4, 5)
        assert "is a voter now" in done(nodes, "add-voter", "--replica-id", 4)
        assert "is a voter now" in done(nodes, "add-voter", "--replica-id", 5)
        assert "is a voter already" in done(nodes, "add-voter", "--replica-id", 5)
        assert voter_ids(nodes) == [1, 2, 3, 4, 5]
        load.wait_progress()
        # The two new ones count: three of five go on without two of the old ones.
        for node in (1, 2):
            nodes.kill(node)
        nodes.wait_leader()
        load.wait_progress()
        for node in (1, 2):
            done(nodes, "remove-voter", "--replica-id", node)
        assert voter_ids(nodes) == [3, 4, 5]
        load.wait_progress()
    nodes.assert_same_logs()
    load.assert_nothing_lost(3, 4, 5)


def test_a_mistyped_endpoint_is_not_written_down(nodes: Cluster) -> None:
    """Nor is it needed: the newcomer has told its leader itself."""
    start_observers(nodes, 4)
    typed = ("--endpoint", "CONTROLLER://typo.invalid:1")
    assert "is a voter now" in done(nodes, "add-voter", "--replica-id", 4, *typed)
    dump = [QUORUMCTL, "dump-log", nodes.storage_dir(nodes.wait_leader())]
    found = subprocess.run(dump, capture_output=True, text=True, check=True)
    assert f"CONTROLLER://{nodes.address(4)}" in found.stdout
    assert "typo" not in found.stdout


def test_a_voter_that_was_removed_is_added_again(nodes: Cluster) -> None:
    start_observers(nodes, 4)
    done(nodes, "add-voter", "--replica-id", 4)
    done(nodes, "remove-voter", "--replica-id", 4)
    done(nodes, "add-voter", "--replica-id", 4)
    assert voter_ids(nodes) == [1, 2, 3, 4]


def test_an_addition_waits_for_its_replica_and_for_the_next_leader(nodes: Cluster) -> None:
    storage_id = uuid_to_text(random_storage_id())
    at = f"CONTROLLER://{nodes.address(4)}"
    known = ("--replica-uuid", storage_id, "--endpoint", at, "--timeout", 60)
    with running(nodes, "add-voter", "--replica-id", 4, *known) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        assert f"replica (4, {storage_id}) does not fetch from this leader" in line
        nodes.kill(nodes.wait_leader())
        nodes.wait_leader()
        nodes.new_disk(4)
        meta = nodes.storage_dir(4) / "meta.properties"
        made = next(
            line.partition("=")[2]
            for line in meta.read_text().splitlines()
            if line.startswith("storage.id=")
        )
        meta.write_text(meta.read_text().replace(made, storage_id))
        nodes.start(4)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert f"(4, {storage_id}) is a voter now." in out
    assert voter_ids(nodes) == [1, 2, 3, 4]


def test_an_observer_that_does_not_catch_up_ends_with_the_reason(nodes: Cluster) -> None:
    start_observers(nodes, 4)
    nodes.suspend(4)
    wait_silent(nodes, 4)
    said = refused(nodes, "add-voter", "--replica-id", 4, "--timeout", 3)
    assert "within 3 s: replica (4, " in said
    assert "records behind, and fetched" in said
    nodes.resume(4)
    done(nodes, "add-voter", "--replica-id", 4)


def test_quorum_voters_keeps_other_ids_out(folder: Path) -> None:
    with running_cluster(folder, observers=1, settings=QUICK) as cluster:
        for command in (("add-voter", "--replica-id", 4), ("reassign", "--voters", "2,3,4")):
            said = refused(cluster, *command)
            assert "quorum.voters" in said
            assert "1, 2, 3" in said
            assert "restart them one by one" in said
        assert "so one replica of that id has to vote" in refused(
            cluster, "remove-voter", "--replica-id", 3
        )
        assert voter_ids(cluster) == [1, 2, 3]


def test_only_voters_that_can_be_spared_are_removed(nodes: Cluster) -> None:
    leader = nodes.wait_leader()
    dead, other = (node for node in nodes.voters if node != leader)
    nodes.kill(dead)
    nodes.wait_for(lambda: SILENT.search(done(nodes, "describe")), "silence that is seen")
    assert "nothing could be committed" in refused(nodes, "remove-voter", "--replica-id", other)
    done(nodes, "remove-voter", "--replica-id", dead)
    done(nodes, "remove-voter", "--replica-id", other)
    said = refused(nodes, "remove-voter", "--replica-id", leader)
    assert "is the only voter: add another one first" in said
    assert voter_ids(nodes) == [leader]


def test_what_a_lost_leader_was_asked_for_is_not_done_by_the_next_one(nodes: Cluster) -> None:
    """Perhaps nobody waits for it any more, or somebody has asked for the opposite."""
    leader = nodes.wait_leader()
    asked = next(node for node in nodes.voters if node != leader)
    nodes.stop(asked)
    with nodes.config_path(asked).open("a") as config:
        config.write("quorum.request.timeout.ms: 20000\n")  # so long the change waits to be sent
    nodes.start(asked)
    nodes.wait_ready(asked)
    lost = nodes.wait_leader()
    assert lost != asked
    removal = RemoveRaftVoterRequest(
        voter_id=lost, voter_directory_id=uuid_from_text(nodes.status(lost)["storage_id"])
    )
    with RawClient(nodes.port(asked)) as client:
        nobody = replace(removal, voter_id=99)
        refusal = client.ask(REMOVE_VOTER, 0, nobody, RemoveRaftVoterResponse)
        assert refusal.error_code == ErrorCode.VOTER_NOT_FOUND
        nodes.suspend(lost)
        client.send(frame(request(REMOVE_VOTER, 0, removal)))
        if nodes.wait_leader() != asked:
            hand_over(nodes, "--to", asked)
        nodes.kill(lost)
        answer = client.answer(REMOVE_VOTER, 0, RemoveRaftVoterResponse)
    assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert "Ask again" in (answer.error_message or "")
    assert voter_ids(nodes) == [*nodes.voters]


def test_a_change_that_waits_at_the_leader_holds_up_no_other_one_asked_of_the_same_follower(
    nodes: Cluster,
) -> None:
    asked = next(node for node in nodes.voters if node != nodes.wait_leader())
    removal = RemoveRaftVoterRequest(voter_id=99, voter_directory_id=random_storage_id())
    with RawClient(nodes.port(asked)) as waiting, RawClient(nodes.port(asked)) as client:
        waiting.send(frame(request(ADD_VOTER, 1, addition_of_4(nodes))))
        nodes.wait_for(lambda: described(nodes)["pending_changes"], "the addition waits")
        refusal = client.ask(REMOVE_VOTER, 0, removal, RemoveRaftVoterResponse)
        assert refusal.error_code == ErrorCode.VOTER_NOT_FOUND
        assert described(nodes)["pending_changes"]


def test_what_a_leader_that_hangs_was_asked_for_is_given_up_when_another_one_leads(
    nodes: Cluster,
) -> None:
    hung = nodes.wait_leader()
    asked = next(node for node in nodes.voters if node != hung)
    with RawClient(nodes.port(asked)) as client:
        client.send(frame(request(ADD_VOTER, 1, addition_of_4(nodes))))
        nodes.wait_for(lambda: described(nodes)["pending_changes"], "the addition waits")
        nodes.suspend(hung)
        answer = client.answer(ADD_VOTER, 1, AddRaftVoterResponse)
    assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert "Ask again" in (answer.error_message or "")


def test_the_leader_removes_itself_and_another_one_leads(nodes: Cluster) -> None:
    with Load(nodes) as load:
        load.wait_progress()
        leader = nodes.wait_leader()
        found = quorumctl(nodes, "remove-voter", "--replica-id", leader)
        assert found.code == 0, found.err
        assert "was the leader: leadership moves to another voter" in found.err
        assert nodes.wait_leader(other_than=leader) in nodes.voters
        load.wait_progress()
    nodes.assert_same_logs()
    load.assert_nothing_lost()


# -- a lost disk


def test_a_lost_disk_is_replaced_by_one_command(folder: Path) -> None:
    with running_cluster(folder, settings=QUICK) as nodes, Load(nodes) as load:
        load.wait_progress()
        old = nodes.status(3)["storage_id"]
        nodes.kill(3)
        nodes.new_disk(3)
        nodes.start(3)
        nodes.wait_ready(3)
        new = nodes.status(3)["storage_id"]
        assert f"(3, {new}) votes in place of (3, {old})." in done(nodes, "replace-voter", 3)
        assert "nothing is left to do" in done(nodes, "replace-voter", 3)
        assert voter_ids(nodes) == [1, 2, 3]
        load.wait_progress()
        # The new disk counts.
        nodes.kill(1)
        load.wait_progress()
        nodes.start()
        nodes.wait_ready()
        load.stop()
        nodes.assert_same_logs()
        load.assert_nothing_lost()


def follower(cluster: Cluster) -> int:
    leader = cluster.wait_leader()
    return next(node for node in cluster.ids if node != leader)


@pytest.mark.parametrize("command", [("replace-voter",), ("add-voter", "--replica-id")])
def test_a_disk_that_was_lost_a_moment_ago_is_waited_for(
    folder: Path, command: tuple[str, ...]
) -> None:
    with running_cluster(folder) as nodes:
        lost = follower(nodes)
        nodes.kill(lost)
        nodes.new_disk(lost)
        nodes.start(lost)
        found = quorumctl(nodes, *command, lost)
        assert found.code == 0, found
        assert f"({lost}, {nodes.status(lost)['storage_id']}) " in found.out


def test_a_voter_that_hangs_is_waited_for_until_the_timeout_and_named(folder: Path) -> None:
    """Its connections stand, so that only silence tells; one that fetches is not waited for."""
    with running_cluster(folder) as nodes:
        node = follower(nodes)
        old = nodes.status(node)["storage_id"]
        uuid = uuid_to_text(random_storage_id())
        add = ("add-voter", "--replica-id", node, "--replica-uuid", uuid, "--timeout", 3)
        at = ("--endpoint", f"CONTROLLER://{nodes.address(node)}")
        alive = f"the voter ({node}, {old}) is alive: stop it, and wait 6000 ms"
        begun_s = time.monotonic()
        assert alive in refused(nodes, *add, *at)
        assert time.monotonic() - begun_s < 2.5
        nodes.suspend(node)
        begun_s = time.monotonic()
        found = quorumctl(nodes, *add, *at)
        assert 2.0 < time.monotonic() - begun_s < 5.0
        assert found.code == FAILED
        progress, _, error = found.err.partition("Error: ")
        assert alive in progress
        assert alive in error
        nodes.resume(node)


def test_a_replacement_that_was_interrupted_after_the_first_step_is_finished(
    nodes: Cluster,
) -> None:
    if nodes.wait_leader() == 3:
        hand_over(nodes, "--to", 2)
    old = nodes.status(3)["storage_id"]
    nodes.kill(3)
    nodes.new_disk(3)
    nodes.start(3)
    nodes.wait_ready(3)
    new = nodes.status(3)["storage_id"]
    silent = "is alive: stop it, and wait 1800 ms"
    nodes.wait_for(
        lambda: silent not in quorumctl(nodes, "add-voter", "--replica-id", 3).err,
        "the first step",
    )
    assert voter_ids(nodes) == [1, 2, 3, 3]
    (warning,) = nodes.status(nodes.wait_leader())["warnings"]
    for part in (f"(3, {old})", f"(3, {new})", "a majority is 3 of 4", "quorumctl replace-voter 3"):
        assert part in warning
    assert "finish the replacement" in refused(nodes, "transfer-leader", "--to", 3).lower()
    done(nodes, "replace-voter", 3)
    voters = {voter["replica_uuid"]: voter["replica_id"] for voter in described(nodes)["voters"]}
    assert voters[new] == 3
    assert len(voters) == 3
    assert nodes.status(nodes.wait_leader())["warnings"] == []


def test_a_disk_that_works_is_not_replaced(nodes: Cluster) -> None:
    assert "nothing is left to do" in done(nodes, "replace-voter", 3)
    assert "4 is not a voter" in refused(nodes, "replace-voter", 4)
    nodes.kill(3)
    assert "without --bootstrap, and start the node" in refused(nodes, "replace-voter", 3)


# -- all of them


def test_a_quorum_moves_to_other_hosts_while_its_leaders_are_killed(nodes: Cluster) -> None:
    with Load(nodes) as load:
        load.wait_progress()
        start_observers(nodes, 4, 5)
        watch = ("reassign", "--voters", "4,5,6", "--watch", "--output", "json")
        with running(nodes, *watch) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            assert "replica 6 does not fetch from the leader yet" in process.stderr.readline()
            # 4 and 5 are in, the leader is to go for 6.
            ids: list[int] = []
            while ids[1:] != [4, 5]:
                seen = json.loads(process.stdout.readline())
                ids = [voter["replica_id"] for voter in seen["voters"]]
            leader = nodes.wait_leader()
            nodes.kill(leader)
            nodes.wait_leader()
            nodes.start(leader)
            nodes.start(6)
            out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        last = json.loads(out.splitlines()[-1])
        assert [voter["replica_id"] for voter in last["voters"]] == [4, 5, 6]
        assert last["target"] is None
        load.wait_progress()
        for node in (1, 2, 3):
            nodes.kill(node)
        load.wait_progress()
    nodes.assert_same_logs()
    load.assert_nothing_lost(4, 5, 6)


def test_an_interrupted_watch_leaves_the_reassignment_to_the_quorum(nodes: Cluster) -> None:
    with running(nodes, "reassign", "--voters", "2,3,4", "--watch") as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("voters 1, 2, 3; target 2, 3, 4;")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert process.returncode == INTERRUPTED
    assert "the reassignment goes on" in err
    assert "replica 4 does not fetch" in done(nodes, "reassign")
    assert "TargetVoters:           2, 3, 4\n" in done(nodes, "describe")
    nodes.start(4)
    done(nodes, "reassign", "--watch")
    assert voter_ids(nodes) == [2, 3, 4]


def test_a_reassignment_is_cancelled_or_turned_round(nodes: Cluster) -> None:
    nodes.start(4)
    done(nodes, "reassign", "--voters", "4,5,6")
    nodes.wait_for(lambda: voter_ids(nodes)[2:] == [4], "4 in place of another one")
    voters = ", ".join(map(str, voter_ids(nodes)))
    assert f"cancelled. The voters are {voters};" in done(nodes, "reassign", "--cancel")
    assert "none is under way" in refused(nodes, "reassign", "--cancel")
    assert "done. The voters are 1, 2, 3;" in done(
        nodes, "reassign", "--voters", "1,2,3", "--watch"
    )


# -- the leader


def hand_over(cluster: Cluster, *to: object) -> None:
    """On a busy machine another voter may be the first one to campaign, which has to be said."""

    def is_done() -> bool:
        found = quorumctl(cluster, "transfer-leader", *to)
        text = " leads " if found.code == 0 else " came to lead"
        assert text in found.text, found
        return found.code == 0

    cluster.wait_for(is_done, f"transfer {to}")


def test_leadership_goes_round_and_nothing_is_lost(nodes: Cluster) -> None:
    with Load(nodes) as load:
        load.wait_progress()
        for node in (1, 2, 3, 1):
            hand_over(nodes, "--to", node)
            assert nodes.wait_leader() == node
            load.wait_progress()
        hand_over(nodes)
        assert nodes.wait_leader() != 1
        load.wait_progress()
    nodes.assert_same_logs()
    load.assert_nothing_lost()


def test_leadership_is_not_handed_to_a_dead_voter(nodes: Cluster) -> None:
    leader = nodes.wait_leader()
    dead = next(node for node in nodes.voters if node != leader)
    nodes.kill(dead)
    wait_silent(nodes, dead)
    assert "is it running?" in refused(nodes, "transfer-leader", "--to", dead)
    # On a busy machine another voter may lead by now, but not because anybody made way.
    for node in nodes.running():
        assert "leadership is handed to" not in nodes.output(node)
        assert "resignation was asked for" not in nodes.output(node)
