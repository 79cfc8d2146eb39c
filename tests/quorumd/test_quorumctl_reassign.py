"""reassign and transfer-leader: what they ask for, show, and survive."""

from __future__ import annotations

import json
import re
import signal
import threading
import time
from collections.abc import Callable

import pytest

from quorumd import (
    ReplicaKey,
)
from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.messages.transfer_leader import TransferLeaderRequest
from tests.quorumd.conftest import Done, QuorumThread
from tests.quorumd.fake_voters import (
    BEHIND,
    FakeVoters,
    key_of,
    lose_first_answer,
    pending,
    uuid_of,
    uuid_text,
)
from tests.quorumd.running import on_a_terminal, started

Run = Callable[..., Done]
FAILED, INTERRUPTED = 1, 130


# --- reassign


def test_a_target_is_set_and_shown(fake: FakeVoters, quorumctl: Run) -> None:
    fake.observers = [key_of(4), key_of(5)]
    done = quorumctl("reassign", "--voters", "5, 4,6")
    assert done.code == 0
    assert fake.asked == ["reassign (4, 5, 6)"]
    assert done.err == "note: replica 6 does not fetch from the leader yet. Is it started?\n"
    shown = quorumctl("reassign").out
    assert shown.startswith("Target:     4, 5, 6\nVoters:     1, 2, 3\nLeader:     1, epoch 1\n")
    assert "Next:       4 or 5 or 6 is added\n" in shown
    does = {line.split()[0]: line.split()[-1] for line in shown.splitlines()[6:]}
    assert does == {"1": "goes", "2": "goes", "3": "goes", "4": "comes", "5": "comes", "6": "comes"}


def test_where_kafka_leads_the_commands_that_change_its_voters_are_named(
    fake: FakeVoters, quorumctl: Run
) -> None:
    words = "Unable to find a topic named __cluster_metadata."
    fake.refusals = [(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, words)]
    done = quorumctl("reassign", "--voters", "1,2,4")
    assert (done.code, done.out) == (FAILED, "")
    assert "Kafka leads this quorum, and changes its voters one at a time" in done.err
    assert "`quorumctl add-voter` and `remove-voter`" in done.err


def test_programs_get_the_reassignment_as_an_object(fake: FakeVoters, quorumctl: Run) -> None:
    fake.observers, fake.target = [key_of(4)], (2, 3, 4)
    fake.pending = [pending("reassign", ReplicaKey(-1, uuid_of(0)), BEHIND)]
    told = json.loads(quorumctl("reassign", "-o", "json").out)
    assert told["target"] == [2, 3, 4]
    assert told["coming"] == [{"replica_id": 4, "replica_uuid": uuid_text(4), "lag": 0}]
    assert told["going"] == [1]
    assert told["next"] == "4 is added"
    assert told["waits_for"] == BEHIND


def test_a_storage_id_that_is_not_known_is_null_for_programs(
    fake: FakeVoters, quorumctl: Run
) -> None:
    fake.voters, fake.committed = [ReplicaKey(1), key_of(2)], [ReplicaKey(1)]
    unknown = {"replica_id": 1, "replica_uuid": None}
    assert json.loads(quorumctl("reassign", "-o", "json").out)["voters"][0] == unknown
    assert json.loads(quorumctl("describe", "-o", "json").out)["committed_voters"] == [unknown]


def test_the_next_to_go_is_the_one_that_has_been_silent_for_longest_and_the_leader_goes_last(
    fake: FakeVoters, quorumctl: Run
) -> None:
    fake.voters += [key_of(4), key_of(5)]
    fake.target, fake.silent_ms = (4, 5), {key_of(2): 700, key_of(3): 900}
    assert f"Next:       {key_of(3)} is removed" in quorumctl("reassign").out
    fake.voters = [key_of(1), key_of(4), key_of(5)]
    assert "Next:       the leader 1 hands over, and is removed" in quorumctl("reassign").out


def test_nothing_under_way_is_said(fake: FakeVoters, quorumctl: Run) -> None:
    text = "no reassignment is under way. The voters are 1, 2, 3; 1 leads.\n"
    assert quorumctl("reassign") == Done(0, text, "")
    assert quorumctl("reassign", "--watch") == Done(0, text, "")
    assert quorumctl("reassign", "--cancel").has_one_error


def test_a_reassignment_is_cancelled(fake: FakeVoters, quorumctl: Run) -> None:
    fake.target = (4, 5, 6)
    done = quorumctl("reassign", "--cancel")
    assert done == Done(0, "cancelled. The voters are 1, 2, 3; 1 leads.\n", "")
    assert fake.asked == ["reassign None"]


def two_steps_and_an_election(fake: FakeVoters) -> None:
    """On the way to (2, 3, 4): 4 is added, 2 elected, 1 removed."""

    def add() -> None:
        fake.voters, fake.observers = [*fake.voters, key_of(4)], []

    def remove() -> None:
        fake.voters, fake.observers = [key_of(2), key_of(3), key_of(4)], [key_of(1)]
        fake.target = None

    first = fake.looks + 6
    fake.at_look = {first: add, first + 2: lambda: fake.quorum.elect(2), first + 4: remove}


def test_a_watch_ends_when_the_target_is_reached_whoever_leads(
    fake: FakeVoters, quorumctl: Run
) -> None:
    fake.observers = [key_of(4)]
    two_steps_and_an_election(fake)
    done = quorumctl("reassign", "--voters", "2,3,4", "--watch")
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[0].startswith("voters 1, 2, 3; target 2, 3, 4; 1 leads; next: 4 is added")
    assert lines[1].startswith("voters 1, 2, 3, 4; target 2, 3, 4; 1 leads; next: the leader 1")
    assert lines[2].startswith("voters 1, 2, 3, 4; target 2, 3, 4; 2 leads; next: (1, ")
    assert lines[3:] == ["done. The voters are 2, 3, 4; 2 leads."]


def test_a_watch_on_a_terminal_is_a_view_that_changes(fake: FakeVoters) -> None:
    fake.observers, fake.target, fake.lag = [key_of(4)], (2, 3, 4), {key_of(4): 17}
    fake.quorum.end_offset = 100
    fake.pending = [pending("reassign", ReplicaKey(-1, uuid_of(0)), BEHIND)]
    two_steps_and_an_election(fake)
    code, shown = on_a_terminal("reassign", "--watch")
    assert code == 0
    for part in ("4 is added", BEHIND, "17", "comes", "Ctrl-C ends the watch", "2, epoch 2"):
        assert part in shown, part
    assert "The voters are 2, 3, 4; 2 leads." in shown


@pytest.mark.long
def test_a_watch_for_programs_has_an_object_for_each_step(fake: FakeVoters, quorumctl: Run) -> None:
    fake.observers, fake.target = [key_of(4)], (2, 3, 4)
    two_steps_and_an_election(fake)
    done = quorumctl("reassign", "--watch", "-o", "json")
    steps = [json.loads(line) for line in done.out.splitlines()]
    assert [(len(step["voters"]), step["leader_id"], step["target"]) for step in steps] == [
        (3, 1, [2, 3, 4]),
        (4, 1, [2, 3, 4]),
        (4, 2, [2, 3, 4]),
        (3, 2, None),
    ]


@pytest.mark.long
def test_a_watch_goes_on_while_nobody_can_be_reached(
    quorum: QuorumThread, fake: FakeVoters, quorumctl: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quorumd.client.admin.DESCRIBE_TIMEOUT_MS", 500)
    fake.observers, fake.target = [key_of(4)], (2, 3, 4)
    two_steps_and_an_election(fake)
    is_out = threading.Event()

    async def set_running(running: bool) -> None:
        for node in fake.quorum.nodes.values():
            await (node.start() if running else node.stop())

    def outage() -> None:
        is_out.wait(20)
        quorum.call(lambda _: set_running(False))
        time.sleep(1)
        quorum.call(lambda _: set_running(True))

    fake.at_look[3] = is_out.set
    helper = threading.Thread(target=outage)
    helper.start()
    done = quorumctl("reassign", "--watch")
    helper.join()
    assert done.code == 0
    lines = done.err.splitlines()
    assert lines[0].startswith("no leader can be reached (127.0.0.1:")
    assert "connection refused" in lines[0]
    assert lines[1:] == ["the quorum can be read again"]


@pytest.mark.parametrize(
    ("target", "text"),
    [((1, 2, 5), "another target was set: 1, 2, 5"), (None, "the reassignment was cancelled")],
)
def test_a_target_that_somebody_else_changes_is_not_reached(
    fake: FakeVoters, quorumctl: Run, target: tuple[int, ...] | None, text: str
) -> None:
    fake.observers = [key_of(4)]

    def change() -> None:
        fake.target = target

    fake.at_look = {6: change}
    done = quorumctl("reassign", "--voters", "2,3,4", "--watch")
    assert done.code == FAILED
    assert text in done.out + done.err


def test_a_target_is_not_reached_either_while_others_still_vote(
    fake: FakeVoters, quorumctl: Run
) -> None:
    def cancel_in_the_middle() -> None:
        fake.voters, fake.observers, fake.target = [*fake.voters, key_of(4)], [], None

    fake.observers = [key_of(4)]
    fake.at_look = {6: cancel_in_the_middle}
    done = quorumctl("reassign", "--voters", "2,3,4", "--watch")
    assert done.code == FAILED
    assert "the reassignment was cancelled. The voters are 1, 2, 3, 4" in done.out


def test_a_watch_with_a_limit_ends_with_what_was_waited_for(
    fake: FakeVoters, quorumctl: Run
) -> None:
    fake.target = (2, 3, 4)
    fake.pending = [pending("reassign", ReplicaKey(-1, uuid_of(0)), BEHIND)]
    done = quorumctl("reassign", "--watch", "--timeout", 0.5)
    assert done.has_one_error
    assert f"could not finish the reassignment within 0.5 s: {BEHIND}" in done.err


def test_ctrl_c_ends_the_watch_and_not_the_reassignment(fake: FakeVoters) -> None:
    with started("reassign", "--voters", "2,3,4", "--watch") as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"voters 1, 2, 3; target 2, 3, 4;")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=20)
    assert process.returncode == INTERRUPTED
    assert b"the reassignment goes on" in err
    assert fake.target == (2, 3, 4)


def test_an_assignment_that_the_leader_refuses_is_shown_with_its_words(
    fake: FakeVoters, quorumctl: Run
) -> None:
    words = "quorum.voters names the ids 1, 2, 3, so just these have to vote"
    fake.refusals = [(ErrorCode.INVALID_REPLICA_ASSIGNMENT, words)]
    done = quorumctl("reassign", "--voters", "4,5,6", "--watch")
    assert done.has_one_error
    assert words in done.err


# --- transfer-leader


def test_leadership_is_handed_to_whom_the_operator_names(fake: FakeVoters, quorumctl: Run) -> None:
    done = quorumctl("transfer-leader", "--to", 3)
    assert (done.code, done.err) == (0, "")
    assert re.fullmatch(r"3 leads in place of 1, in epoch 2, after \d+ ms\.\n", done.out)
    assert fake.asked == ["transfer to 3"]
    again = quorumctl("transfer-leader", "--to", 3)
    assert again == Done(0, "3 leads already, in epoch 2.\n", "")
    assert len(fake.asked) == 1


def test_without_a_name_the_leader_chooses(fake: FakeVoters, quorumctl: Run) -> None:
    told = json.loads(quorumctl("transfer-leader", "-o", "json").out)
    assert (told["from_id"], told["leader_id"], told["leader_epoch"]) == (1, 2, 2)
    assert fake.asked == ["transfer to -1"]


@pytest.mark.parametrize("wanted", [0, 3])
@pytest.mark.parametrize("elected", [1, 2])
def test_it_is_a_failure_if_somebody_else_comes_to_lead(
    fake: FakeVoters, quorumctl: Run, elected: int, wanted: int
) -> None:
    fake.voters.append(key_of(0))
    fake.elect_on_transfer = elected
    done = quorumctl("transfer-leader", "--to", wanted)
    assert done.has_one_error
    again = " again" if elected == 1 else ""
    assert f"not {wanted} but {elected} came to lead{again}, in epoch 2" in done.err


def test_it_is_a_failure_if_the_same_one_leads_again(fake: FakeVoters, quorumctl: Run) -> None:
    fake.elect_on_transfer = 1
    done = quorumctl("transfer-leader", "-o", "json")
    assert done.has_one_error
    assert "Error: 1 came to lead again, in epoch 2" in done.err
    assert json.loads(done.out)["leader_id"] == 1


def test_a_new_leader_counts_once_it_has_committed(fake: FakeVoters, quorumctl: Run) -> None:
    fake.high_watermark = -1

    def commit() -> None:
        fake.high_watermark = 7

    fake.at_look = {20: commit}
    assert quorumctl("transfer-leader", "--to", 2).code == 0
    assert fake.looks == 20


@pytest.mark.parametrize("to", [(), ("--to", "3")])
def test_a_handover_whose_answer_is_lost_is_not_done_twice(
    fake: FakeVoters, quorumctl: Run, to: tuple[str, ...]
) -> None:
    lose_first_answer(fake.quorum, TransferLeaderRequest)
    done = quorumctl("transfer-leader", *to)
    assert done.code == 0
    assert fake.quorum.epoch == 2


def test_nobody_is_asked_to_stop_appends_again_and_again(fake: FakeVoters, quorumctl: Run) -> None:
    fake.refusals = [(ErrorCode.REQUEST_TIMED_OUT, "3 had not everything after 1000 ms")]
    done = quorumctl("transfer-leader", "--to", 3)
    assert done.has_one_error
    assert "3 had not everything after 1000 ms" in done.err
    assert len(fake.asked) == 1


def test_leadership_goes_to_one_voter_only(fake: FakeVoters, quorumctl: Run) -> None:
    fake.observers = [key_of(4)]
    done = quorumctl("transfer-leader", "--to", 4)
    assert done.has_one_error
    assert "4 is not a voter. The voters are (1, " in done.err
    fake.voters.append(key_of(3, 1))
    done = quorumctl("transfer-leader", "--to", 3)
    assert done.has_one_error
    assert "quorumctl replace-voter 3" in done.err
    fake.refusals = [(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, "none of 2 has fetched lately")]
    assert quorumctl("transfer-leader").has_one_error
