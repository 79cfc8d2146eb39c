"""add-voter, remove-voter and replace-voter: what they ask for, print, retry and refuse."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from quorumd import (
    ReplicaKey,
)
from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.messages.add_raft_voter import AddRaftVoterRequest
from quorumd.wire.messages.api_versions import ApiVersionsResponse
from quorumd.wire.messages.describe_quorum import DescribeQuorumRequest, DescribeQuorumResponse
from quorumd.wire.messages.remove_raft_voter import RemoveRaftVoterRequest
from quorumd.wire.schema import Message
from tests.quorumd.conftest import Done, QuorumThread
from tests.quorumd.fake_voters import (
    BEHIND,
    LONG_MS,
    FakeVoters,
    key_of,
    lose_first_answer,
    pending,
    uuid_of,
    uuid_text,
)
from tests.quorumd.running import on_a_terminal, started

Run = Callable[..., Done]
FAILED, USAGE, INTERRUPTED = 1, 2, 130
OWN_KEYS_FROM, TAKE_SNAPSHOT = 20_000, 20_002


# --- add-voter


def test_an_observer_is_added_with_the_storage_id_and_endpoints_that_the_leader_knows(
    fake: FakeVoters, quorumctl: Run
) -> None:
    fake.observers = [key_of(4), key_of(5)]
    done = quorumctl("add-voter", "--replica-id", 4)
    text = f"{key_of(4)} is a voter now.\nThe voters are 1, 2, 3, 4; 1 leads.\n"
    assert done == Done(0, text, "")
    assert fake.asked == [f"add {key_of(4)} at CONTROLLER://127.0.0.1:20004"]


def test_the_endpoint_at_which_a_kafka_leader_does_not_reach_a_new_voter_is_named(
    fake: FakeVoters, quorumctl: Run
) -> None:
    words = (
        "Aborted add voter operation for since API_VERSIONS returned an error BROKER_NOT_AVAILABLE."
    )
    fake.observers = [key_of(4)]
    fake.refusals = [(ErrorCode.REQUEST_TIMED_OUT, words)] * 50
    at = "CONTROLLER://db4.example.com:9093"
    done = quorumctl("add-voter", "--replica-id", 4, "--endpoint", at, "--timeout", 1)
    assert done.code == FAILED
    assert f"the leader asks the new voter at {at}, and gets no response ({words})" in done.err


@pytest.mark.parametrize("command", [("add-voter", "--replica-id"), ("replace-voter",)])
def test_a_new_disk_under_an_id_that_has_a_vote_already_is_not_said_to_vote_beside_kafka(
    fake: FakeVoters, quorumctl: Run, command: tuple[str, ...]
) -> None:
    """Kafka has one voter of an id, and responds for another storage id as if it voted already."""
    fake.replace_disk(2)
    fake.refusals = [
        (ErrorCode.DUPLICATE_VOTER, "The voter id is already part of the set of voters")
    ]
    done = quorumctl(*command, 2)
    assert (done.code, done.out) == (FAILED, "")
    assert f"{key_of(2)} votes, and Kafka has one voter of an id. Take its vote first:" in done.err
    assert "`quorumctl remove-voter --replica-id 2`" in done.err
    # What votes stays: the new disk would not have come in its place.
    assert fake.voters == [key_of(1), key_of(2), key_of(3)]


def test_programs_are_told_who_was_added_and_who_votes(fake: FakeVoters, quorumctl: Run) -> None:
    fake.observers = [key_of(4)]
    told = json.loads(quorumctl("add-voter", "--replica-id", 4, "-o", "json").out)
    assert told["replica_uuid"] == uuid_text(4)
    assert told["was_voter"] is False
    assert [voter["replica_id"] for voter in told["voters"]] == [1, 2, 3, 4]
    assert told["leader_id"] == 1


def test_a_change_that_is_made_is_done_though_the_voters_are_not_told_then(
    fake: FakeVoters, quorumctl: Run
) -> None:
    fake.observers = [key_of(4)]
    describe = fake.quorum.handlers[DescribeQuorumRequest]

    async def describe_before(node_id: int, request: Message) -> Message:
        if fake.asked:
            return DescribeQuorumResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        return await describe(node_id, request)

    fake.quorum.handlers[DescribeQuorumRequest] = describe_before
    done = quorumctl("add-voter", "--replica-id", 4)
    assert done == Done(0, f"{key_of(4)} is a voter now.\n", "")


def test_endpoints_that_are_given_are_the_ones_that_are_used(
    fake: FakeVoters, quorumctl: Run
) -> None:
    fake.observers = [key_of(4)]
    at = ("--endpoint", "controller://db4:9093", "--endpoint", "CLIENT://[::1]:9092")
    assert quorumctl("add-voter", "--replica-id", 4, *at).code == 0
    assert fake.asked == [f"add {key_of(4)} at CONTROLLER://db4:9093, CLIENT://::1:9092"]


def test_of_two_that_fetch_under_one_id_the_operator_chooses(
    fake: FakeVoters, quorumctl: Run
) -> None:
    fake.observers = [key_of(4), key_of(4, 1)]
    done = quorumctl("add-voter", "--replica-id", 4)
    assert done.has_one_error
    for part in (str(key_of(4)), str(key_of(4, 1)), "--replica-uuid"):
        assert part in done.err
    assert fake.asked == []
    assert quorumctl("add-voter", "--replica-id", 4, "--replica-uuid", uuid_text(4, 1)).code == 0
    assert key_of(4, 1) in fake.voters


def test_of_two_under_one_id_the_one_that_fetches_is_meant(
    fake: FakeVoters, quorumctl: Run
) -> None:
    fake.observers = [key_of(4), key_of(4, 1)]
    fake.silent_ms[key_of(4)] = LONG_MS
    assert quorumctl("add-voter", "--replica-id", 4).code == 0
    assert key_of(4, 1) in fake.voters


@pytest.mark.parametrize("is_voter", [False, True])
def test_who_is_added_beside_another_voter_of_its_id_is_told_that_both_count(
    fake: FakeVoters, quorumctl: Run, is_voter: bool
) -> None:
    fake.replace_disk(3)
    if is_voter:
        fake.observers, fake.voters = [], [*fake.voters, key_of(3, 1)]
    done = quorumctl("add-voter", "--replica-id", 3, "--replica-uuid", uuid_text(3, 1))
    assert done.code == 0
    assert done.out == (
        f"{key_of(3, 1)} is a voter {'already' if is_voter else 'now'}.\n"
        f"So is {key_of(3)}: there are two voters under the id 3. 4 voters count, and a majority is 3 of "
        "them. Remove the old one: `quorumctl replace-voter 3` does it.\n"
        f"The voters are 1, 2, {key_of(3)}, {key_of(3, 1)}; 1 leads.\n"
    )
    assert quorumctl("replace-voter", 3).out.endswith("The voters are 1, 2, 3; 1 leads.\n")


def test_an_id_that_nobody_has_ends_with_what_to_check(fake: FakeVoters, quorumctl: Run) -> None:
    done = quorumctl("add-voter", "--replica-id", 7, "--timeout", 0.5)
    assert done.has_one_error
    for part in (
        "no replica 7 fetches",
        "Is it started?",
        "quorum.bootstrap.servers",
        "cluster.id",
    ):
        assert part in done.err


def test_a_replica_that_is_started_just_now_is_found_all_the_same(
    fake: FakeVoters, quorumctl: Run
) -> None:
    fake.at_look = {3: lambda: fake.observers.append(key_of(4))}
    assert quorumctl("add-voter", "--replica-id", 4).code == 0


def test_a_storage_id_that_nobody_has_ends_with_those_that_are_there(
    fake: FakeVoters, quorumctl: Run
) -> None:
    fake.observers = [key_of(4)]
    wrong = ("--replica-uuid", uuid_text(4, 8), "--timeout", 0.5)
    done = quorumctl("add-voter", "--replica-id", 4, *wrong)
    assert done.has_one_error
    assert f"no replica {key_of(4, 8)} fetches" in done.err
    assert f"under that id there is {key_of(4)}" in done.err


def test_a_storage_id_of_another_replica_is_taken_for_a_copied_directory(
    fake: FakeVoters, quorumctl: Run
) -> None:
    done = quorumctl("add-voter", "--replica-id", 4, "--replica-uuid", uuid_text(3))
    assert done.has_one_error
    assert f"{uuid_text(3)} is that of replica 3" in done.err
    assert fake.asked == []


def test_an_observer_that_has_not_told_where_it_is_needs_an_endpoint(
    fake: FakeVoters, quorumctl: Run
) -> None:
    fake.observers, fake.untold = [key_of(4)], {key_of(4)}
    done = quorumctl("add-voter", "--replica-id", 4, "--timeout", 0.5)
    assert done.has_one_error
    assert "--endpoint NAME://host:port" in done.err
    assert quorumctl("add-voter", "--replica-id", 4, "--endpoint", "C://h:1").code == 0


def test_a_new_disk_is_not_added_at_the_place_of_the_old_one(
    fake: FakeVoters, quorumctl: Run
) -> None:
    """The endpoints of (3, old) are not those of (3, new), though both have the id 3."""
    fake.replace_disk(3)
    fake.untold = {key_of(3, 1)}
    done = quorumctl("add-voter", "--replica-id", 3, "--timeout", 0.5)
    assert done.has_one_error
    assert fake.asked == []


def test_a_voter_is_a_voter_already(fake: FakeVoters, quorumctl: Run) -> None:
    done = quorumctl("add-voter", "--replica-id", 3)
    assert done.code == 0
    assert done.out.startswith(f"{key_of(3)} is a voter already.\n")
    assert fake.asked == []


def test_an_addition_whose_answer_is_lost_is_done_once(
    quorum: QuorumThread, fake: FakeVoters, quorumctl: Run
) -> None:
    fake.observers = [key_of(4)]
    lose_first_answer(quorum.quorum, AddRaftVoterRequest)
    done = quorumctl("add-voter", "--replica-id", 4)
    assert done.code == 0
    assert len(fake.asked) == 2
    assert fake.voter_ids == [1, 2, 3, 4]


@pytest.mark.parametrize(
    "error",
    [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_CONTROLLER, ErrorCode.REQUEST_TIMED_OUT],
)
def test_what_may_pass_is_asked_for_again(
    fake: FakeVoters, quorumctl: Run, error: ErrorCode
) -> None:
    fake.observers = [key_of(4)]
    fake.refusals = [(error, "not now")] * 3
    assert quorumctl("add-voter", "--replica-id", 4).code == 0
    assert len(fake.asked) == 4


def test_a_leader_that_hangs_is_left_when_another_one_is_elected(
    fake: FakeVoters, quorumctl: Run
) -> None:
    fake.observers, held = [key_of(4)], fake.gate
    held.clear()

    def elect() -> None:
        fake.gate = asyncio.Event()
        fake.gate.set()
        fake.quorum.elect(2)

    fake.at_look = {4: elect}
    started_at = time.monotonic()
    done = quorumctl("add-voter", "--replica-id", 4, "--timeout", 60)
    assert done.code == 0
    assert time.monotonic() - started_at < 20
    assert not held.is_set()
    asked = [node for node, each in fake.quorum.requests if isinstance(each, AddRaftVoterRequest)]
    assert asked == [1, 2]


def test_a_voter_that_never_catches_up_ends_with_the_reason(
    fake: FakeVoters, quorumctl: Run
) -> None:
    fake.observers = [key_of(4)]
    fake.pending = [pending("add", key_of(4), BEHIND)]
    fake.gate.clear()
    done = quorumctl("add-voter", "--replica-id", 4, "--timeout", 1.5)
    assert done.has_one_error
    assert f"within 1.5 s: {BEHIND}" in done.err
    assert "safe to repeat" in done.err


def test_a_leader_that_gives_up_in_time_has_its_reason_shown(
    fake: FakeVoters, quorumctl: Run
) -> None:
    fake.observers = [key_of(4)]
    fake.refusals = [(ErrorCode.REQUEST_TIMED_OUT, BEHIND)] * 1000
    done = quorumctl("add-voter", "--replica-id", 4, "--timeout", 0.6)
    assert done.has_one_error
    assert f"could not add 4 to the voters within 0.6 s: {BEHIND}" in done.err


def test_what_the_leader_refuses_is_shown_with_its_words(fake: FakeVoters, quorumctl: Run) -> None:
    fake.observers = [key_of(4)]
    words = "quorum.voters permits the ids 1, 2, 3 only, not 4. Remove that key"
    fake.refusals = [(ErrorCode.INVALID_REQUEST, words)]
    done = quorumctl("add-voter", "--replica-id", 4)
    assert done.has_one_error
    assert f"could not add 4 to the voters: {words} (INVALID_REQUEST)" in done.err
    assert len(fake.asked) == 1


@pytest.mark.long
def test_what_is_waited_for_is_told_without_a_terminal(fake: FakeVoters, quorumctl: Run) -> None:
    fake.observers = [key_of(4)]
    fake.pending = [pending("add", key_of(4), BEHIND), pending("add", key_of(5), "another")]
    fake.gate.clear()
    fake.at_look = {10: fake.gate.set}
    done = quorumctl("add-voter", "--replica-id", 4)
    assert (done.code, done.err) == (0, f"adding 4, for 12 s: {BEHIND}\n")


def test_what_is_waited_for_stands_on_a_terminal(fake: FakeVoters) -> None:
    fake.observers = [key_of(4)]
    fake.pending = [pending("add", key_of(4), BEHIND)]
    fake.gate.clear()
    fake.at_look = {10: fake.gate.set}
    code, shown = on_a_terminal("add-voter", "--replica-id", "4")
    assert code == 0
    assert f"adding 4, for 12 s: {BEHIND}" in shown
    assert "is a voter now." in shown


def test_an_addition_that_is_interrupted_says_that_it_may_go_on(fake: FakeVoters) -> None:
    fake.observers = [key_of(4)]
    fake.gate.clear()
    with started("add-voter", "--replica-id", "4") as process:
        deadline = time.monotonic() + 20
        while not fake.asked and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (INTERRUPTED, b"")
    assert b"the leader may still do it" in err
    assert b"Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("add-voter",), "--replica-id"),
        (("add-voter", "--replica-id", "-1"), "range"),
        (("add-voter", "--replica-id", "four"), "four"),
        (("add-voter", "--replica-id", "4", "--replica-uuid", "x"), "22 characters of base64"),
        (("add-voter", "--replica-id", "4", "--replica-uuid", "A" * 22), "stands for none"),
        (("add-voter", "--replica-id", "4", "--endpoint", "C://db4"), "no port"),
        (("add-voter", "--replica-id", "4", "--endpoint", "C://db4:0"), "no port"),
        (("add-voter", "--replica-id", "4", "--endpoint", "db4:9093"), "NAME://host:port"),
        (("add-voter", "--replica-id", "4", "--endpoint", "C://a:1,D://b:2"), "of its own"),
        (("add-voter", "--replica-id", "4", *("--endpoint", "C://a:1") * 2), "named twice"),
        (("add-voter", "--replica-id", "4", "--timeout", "0"), "range"),
        (("remove-voter", "--replica-id", "-1"), "range"),
        (("replace-voter", "x"), "x"),
        (("reassign", "--voters", "1,2,x"), "no list of ids"),
        (("reassign", "--voters", ""), "no list of ids"),
        (("reassign", "--voters", "1,-2"), "no list of ids"),
        (("reassign", "--voters", "9" * 5000), "no list of ids"),
        (("reassign", "--voters", "1,2,2"), "names an id twice"),
        (("reassign", "--voters", "1,2,2147483648"), "is no list of ids"),
        (("reassign", "--voters", "1,2", "--cancel"), "--cancel"),
        (("reassign", "--watch", "--cancel"), "--cancel"),
        (("transfer-leader", "--to", "-2"), "range"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anybody_is_asked(
    fake: FakeVoters, quorumctl: Run, arguments: tuple[str, ...], text: str
) -> None:
    done = quorumctl(*arguments)
    assert done.code == USAGE
    assert text in done.err
    assert fake.quorum.requests == []


def test_a_storage_id_may_begin_with_a_dash(fake: FakeVoters, quorumctl: Run) -> None:
    key = ReplicaKey(4, uuid_of(4).__class__(int=0xFB << 120))
    assert str(key).startswith("(4, -")
    fake.observers = [key]
    done = quorumctl("add-voter", "--replica-id", 4, "--replica-uuid", str(key)[4:-1])
    assert done.code == 0


# --- remove-voter


def beside_kafka(fake: FakeVoters, witness: int) -> None:
    """Of the nodes this one alone is quorumd's: the others offer nothing that Kafka does not."""

    def answer(node_id: int, request: Message, response: Message) -> Message:
        if isinstance(response, ApiVersionsResponse):
            keys = response.api_keys
            return replace(
                response,
                api_keys=tuple(
                    each for each in keys if each.api_key < OWN_KEYS_FROM or node_id == witness
                ),
            )
        return response

    fake.quorum.offered += (TAKE_SNAPSHOT,)
    fake.quorum.before_answer = answer


def test_the_last_controller_is_not_removed_where_a_witness_alone_would_vote(
    fake: FakeVoters, quorumctl: Run
) -> None:
    beside_kafka(fake, witness=2)
    fake.voters = [key_of(1), key_of(2)]
    done = quorumctl("remove-voter", "--replica-id", 1)
    assert (done.code, fake.asked) == (FAILED, [])
    assert f"only {key_of(2)}, a witness, would vote then, and lead no Kafka quorum" in done.err
    assert quorumctl("remove-voter", "--replica-id", 2).code == 0
    fake.voters = [key_of(1), key_of(2)]
    assert quorumctl("remove-voter", "--replica-id", 1, "--force").code == 0


@pytest.mark.parametrize("witness", [3, 0])
def test_one_of_two_controllers_is_removed_with_a_witness_or_without(
    fake: FakeVoters, quorumctl: Run, witness: int
) -> None:
    beside_kafka(fake, witness)
    fake.voters = [key_of(1), key_of(2), *([key_of(3)] if witness else [])]
    assert quorumctl("remove-voter", "--replica-id", 1).code == 0


def test_a_voter_is_removed_by_its_id(fake: FakeVoters, quorumctl: Run) -> None:
    done = quorumctl("remove-voter", "--replica-id", 3)
    text = f"{key_of(3)} is no voter any more.\nThe voters are 1, 2; 1 leads.\n"
    assert done == Done(0, text, "")
    assert fake.asked == [f"remove {key_of(3)}"]


def test_who_is_no_voter_is_not_removed(fake: FakeVoters, quorumctl: Run) -> None:
    fake.observers = [key_of(4)]
    for arguments in (("4",), ("7",), ("3", "--replica-uuid", uuid_text(3, 1))):
        done = quorumctl("remove-voter", "--replica-id", *arguments)
        assert done.has_one_error
        assert "is not a voter. The voters are (1, " in done.err
    assert fake.asked == []


def test_of_two_voters_under_one_id_the_operator_chooses(fake: FakeVoters, quorumctl: Run) -> None:
    fake.voters.append(key_of(3, 1))
    done = quorumctl("remove-voter", "--replica-id", 3)
    assert done.has_one_error
    assert "--replica-uuid" in done.err
    assert quorumctl("remove-voter", "--replica-id", 3, "--replica-uuid", uuid_text(3)).code == 0
    assert key_of(3, 1) in fake.voters


def test_a_removal_whose_answer_is_lost_is_done(
    quorum: QuorumThread, fake: FakeVoters, quorumctl: Run
) -> None:
    lose_first_answer(quorum.quorum, RemoveRaftVoterRequest)
    done = quorumctl("remove-voter", "--replica-id", 3)
    assert (done.code, fake.voter_ids, len(fake.asked)) == (0, [1, 2], 2)


def test_a_removal_that_would_stop_the_quorum_is_not_even_asked_for(
    fake: FakeVoters, quorumctl: Run
) -> None:
    fake.silent_ms[key_of(2)] = LONG_MS
    done = quorumctl("remove-voter", "--replica-id", 3)
    assert done.has_one_error
    assert f"of which {key_of(1)} fetches: nothing could be committed any more" in done.err
    assert "--force" in done.err
    assert fake.asked == []
    # The one that is down may go.
    assert quorumctl("remove-voter", "--replica-id", 2).code == 0
    assert fake.voter_ids == [1, 3]


def test_force_removes_a_voter_that_is_needed(fake: FakeVoters, quorumctl: Run) -> None:
    fake.silent_ms[key_of(2)] = LONG_MS
    assert quorumctl("remove-voter", "--replica-id", 3, "--force").code == 0
    assert fake.asked == [f"remove {key_of(3)} by force"]


def test_the_leader_may_be_removed_and_leadership_moves(fake: FakeVoters, quorumctl: Run) -> None:
    done = quorumctl("remove-voter", "--replica-id", 1)
    assert done.code == 0
    assert f"{key_of(1)} was the leader: leadership moves" in done.err
    assert done.out.endswith("The voters are 2, 3; 2 leads.\n")


def test_the_last_voter_stays(fake: FakeVoters, quorumctl: Run) -> None:
    fake.voters = [key_of(1)]
    done = quorumctl("remove-voter", "--replica-id", 1)
    assert done.has_one_error
    assert "is the only voter (VOTER_NOT_FOUND)" in done.err


# --- replace-voter


def test_a_new_disk_votes_in_place_of_the_old_one(fake: FakeVoters, quorumctl: Run) -> None:
    fake.replace_disk(3)
    done = quorumctl("replace-voter", 3)
    assert done.code == 0
    assert done.out.startswith(f"{key_of(3, 1)} votes in place of {key_of(3)}.\n")
    assert [each.partition(" at ")[0] for each in fake.asked] == [
        f"add {key_of(3, 1)}",
        f"remove {key_of(3)}",
    ]
    assert fake.voters == [key_of(1), key_of(2), key_of(3, 1)]


def test_a_replacement_goes_on_where_it_was_interrupted(fake: FakeVoters, quorumctl: Run) -> None:
    fake.voters.append(key_of(3, 1))
    fake.silent_ms[key_of(3)] = LONG_MS
    done = quorumctl("replace-voter", 3, "-o", "json")
    assert done.code == 0
    assert json.loads(done.out)["replaced"] == {"replica_id": 3, "replica_uuid": uuid_text(3)}
    assert fake.asked == [f"remove {key_of(3)}"]
    again = quorumctl("replace-voter", 3)
    assert again.code == 0
    assert "nothing is left to do" in again.out
    assert len(fake.asked) == 1


@pytest.mark.parametrize("request_type", [AddRaftVoterRequest, RemoveRaftVoterRequest])
def test_a_replacement_survives_the_loss_of_an_answer(
    quorum: QuorumThread, fake: FakeVoters, quorumctl: Run, request_type: type[Message]
) -> None:
    fake.replace_disk(3)
    lose_first_answer(quorum.quorum, request_type)
    assert quorumctl("replace-voter", 3).code == 0
    assert fake.voters == [key_of(1), key_of(2), key_of(3, 1)]


def test_a_disk_that_still_works_is_not_replaced(fake: FakeVoters, quorumctl: Run) -> None:
    fake.observers = [key_of(3, 1)]
    done = quorumctl("replace-voter", 3, "--timeout", 0.5)
    assert done.has_one_error
    assert "all fetch. Stop the one with the old disk" in done.err
    fake.voters, fake.observers = [*fake.voters, key_of(3, 1)], []
    assert quorumctl("replace-voter", 3, "--timeout", 0.5).has_one_error
    assert fake.asked == []


def test_a_lost_disk_without_a_new_one_ends_with_the_steps(
    fake: FakeVoters, quorumctl: Run
) -> None:
    fake.silent_ms[key_of(3)] = LONG_MS
    done = quorumctl("replace-voter", 3, "--timeout", 0.5)
    assert done.has_one_error
    assert "without --bootstrap, and start the node" in done.err
    assert fake.asked == []


def test_who_never_voted_has_no_vote_to_pass_on(fake: FakeVoters, quorumctl: Run) -> None:
    fake.observers = [key_of(4)]
    done = quorumctl("replace-voter", 4)
    assert done.has_one_error
    assert "`quorumctl add-voter` makes a new one" in done.err


def test_no_disk_is_replaced_while_too_few_voters_are_up(fake: FakeVoters, quorumctl: Run) -> None:
    """With (3, old) in it the set is one of four, of which three are needed."""
    fake.replace_disk(3)
    fake.silent_ms[key_of(2)] = LONG_MS
    done = quorumctl("replace-voter", 3)
    assert done.has_one_error
    assert "nothing could be committed any more" in done.err
    assert fake.asked == []


def test_a_leader_that_is_not_yet_sure_that_the_old_disk_is_gone_is_asked_again(
    fake: FakeVoters, quorumctl: Run
) -> None:
    fake.replace_disk(3)
    fake.silent_ms[key_of(3)] = 4000
    fake.refusals = [(ErrorCode.INVALID_REQUEST, f"the voter {key_of(3)} is alive")] * 2
    assert quorumctl("replace-voter", 3).code == 0
    assert len(fake.asked) == 4


def test_a_voter_that_died_a_moment_ago_is_not_taken_for_well(
    fake: FakeVoters, quorumctl: Run
) -> None:
    fake.died_at_ms[key_of(3)] = int(time.time() * 1000)

    def tell_it_differently() -> None:
        fake.died_at_ms[key_of(3)] += 1

    fake.at_look = {2: tell_it_differently}
    done = quorumctl("replace-voter", 3, "--timeout", 1)
    assert done.has_one_error
    assert "has not fetched since this was asked" in done.err


@pytest.mark.parametrize("names", [("A://h:1", "a://h:2"), ("A://h:1", "A://h:1")])
def test_a_listener_is_named_once(names: tuple[str, str], quorumctl: Run) -> None:
    options = [part for name in names for part in ("--endpoint", name)]
    done = quorumctl("add-voter", "-b", "h:1", "--replica-id", 4, *options)
    assert done.code == 2
    assert "the listener A is named twice" in done.err
