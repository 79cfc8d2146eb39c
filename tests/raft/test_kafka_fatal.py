"""What ends the process of a Kafka controller, and that a witness beside it does none of it.

| what ends it | the test that it does not happen |
|---|---|
| an answer with 42 or 31 | test_no_answer_refuses_as_invalid_or_unauthorized |
| a leader that is named without endpoints | test_a_leader_is_named_with_endpoints |
| a second leader of an epoch, or the asker though it does not lead | test_a_leader_is_named_once |
| Vote of the last epoch | test_no_vote_is_asked_for_in_the_last_epoch |
| two answers to one candidate | test_the_same_candidate_gets_the_same_answer |
| a request under its own id | test_kafka_witness: test_a_kafka_node_is_never_asked_under_its_own_id |
| a high watermark that falls | test_kafka_witness: test_it_says_no_high_watermark_while_it_leads |
| a log that parts below it | test_kafka_witness: test_a_log_that_diverges_is_cut_at_a_point_that_both_have |
| a control record or batch of its own | test_kafka_log: test_no_record_of_its_own_enters_a_kafka_log_... |
| a position behind 2^31 of a snapshot | test_snapshot_download: test_a_kafka_leader_is_never_asked_... |
| a FetchSnapshot without topics | server/test_kafka_answers: test_a_request_of_a_witness_... |
| an answer's bytes | server/test_kafka_answers |
| another snapshot than was asked for | test_snapshots: test_a_leader_serves_the_snapshots_that_it_has |
"""

from __future__ import annotations

import pytest

from quorumd.raft.effects import BeginQuorumEpoch, Reply, SendReply, Vote
from quorumd.raft.leader_discovery import LAST_EPOCH
from quorumd.raft.roles import Role
from tests.raft.harness import Bench, key
from tests.raft.test_kafka_witness import BEHIND, leading, lost, witness

EPOCHS = (-1, 0, 3, 4, 2**31 - 1)
ENDS = ((0, 0), (3, 2), (-1, -1), (3, 2**31 - 1))
ASKER = 3
"""It never leads."""


def asked_everything(bench: Bench) -> list[Reply]:
    """The answers to requests of all epochs, with all ends of logs, of 3, of its own id, and of nobody."""
    for epoch in EPOCHS:
        for last in ENDS:
            bench.pre_vote(key(ASKER), epoch, last)
            bench.vote(key(ASKER), epoch, last)
            bench.vote(key(1, disk=5), epoch, last)
            bench.fetch(key(ASKER), *last, epoch=epoch)
        bench.begin(ASKER, epoch, says_so=False)
        bench.begin(-1, epoch, says_so=False)
        bench.end(ASKER, epoch, key(1), says_so=False)
    return [each.reply for each in bench.find_all(SendReply)]


@pytest.fixture(params=[witness, lost, leading])
def replies(request: pytest.FixtureRequest) -> list[Reply]:
    """All that a witness in one of its roles answers."""
    found = asked_everything(request.param())
    assert len(found) > 50
    return found


def test_no_answer_refuses_as_invalid_or_unauthorized(replies: list[Reply]) -> None:
    errors = {each.error for each in replies} | {each.top_level_error for each in replies}
    assert not errors & {"INVALID_REQUEST", "CLUSTER_AUTHORIZATION_FAILED"}
    assert len(errors) > 3


def test_a_leader_is_named_with_endpoints(replies: list[Reply]) -> None:
    named = [each for each in replies if each.leader_id is not None]
    assert named
    assert all(each.leader_endpoints for each in named)


def test_a_leader_is_named_once(replies: list[Reply]) -> None:
    leaders = {(each.epoch, each.leader_id) for each in replies if each.leader_id is not None}
    assert len({epoch for epoch, _ in leaders}) == len(leaders)
    assert ASKER not in {leader for _, leader in leaders}


def test_who_leads_for_a_hand_over_says_so_of_its_own_epoch_alone() -> None:
    bench = leading()
    begun = [each.request for each in bench.requests(BeginQuorumEpoch, bench.all)]
    assert begun
    assert set(begun) == {BeginQuorumEpoch(epoch=bench.node.epoch)}


def test_no_vote_is_asked_for_in_the_last_epoch() -> None:
    assert LAST_EPOCH < 2**31
    bench = lost()
    bench.pre_vote(key(ASKER), 3, BEHIND)
    bench.node.core.epoch = LAST_EPOCH
    for _ in range(50):
        bench.fire()
        bench.sync()
    asked = [each.request for each in bench.requests(Vote, bench.all)]
    assert [each for each in asked if each.epoch >= LAST_EPOCH and not each.pre_vote] == []
    assert bench.role is not Role.CANDIDATE


def test_the_same_candidate_gets_the_same_answer() -> None:
    """It asks again if an answer was lost, and may get both."""
    bench = witness()
    end = bench.node.core.log.end
    assert not bench.vote(key(ASKER), 4, BEHIND).granted
    assert not bench.vote(key(ASKER), 4, BEHIND).granted
    bench = lost()
    assert bench.vote(key(ASKER), 4, end).granted
    assert bench.vote(key(ASKER), 4, end).granted, "and a granted one is not refused"
