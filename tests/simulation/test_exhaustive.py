"""The exploration of small scopes: complete, repeatable, and able to find what is planted."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from quorumd.raft import (
    campaign,
    core,
    core_parts,
    fetch_requests,
    fetching,
    high_watermark,
    log_view,
    node,
    quorum,
    quorum_epochs,
    roles,
    vote_requests,
)
from quorumd.raft.effects import Fetch, Reply, SendReply
from quorumd.raft.role_changes import become_unattached
from quorumd.raft.transitions import Trigger
from quorumd.raft.truncation import truncate as truncate_log
from quorumd.raft.types import OffsetAndEpoch
from quorumd.server.partition.driver import Driver
from simulation.exhaustive import host
from simulation.exhaustive.__main__ import main
from simulation.exhaustive.frozen import (
    FIELDS,
    LATER_MS,
    LEAST_TRAFFIC,
    NOW_MS,
    Traffic,
    freeze,
    thaw,
)
from simulation.exhaustive.labels import ALL_LABELS
from simulation.exhaustive.messages import BEGIN, Message, RequestBody
from simulation.exhaustive.networks import Networks
from simulation.exhaustive.properties import check_disks, check_logs
from simulation.exhaustive.render import lines
from simulation.exhaustive.replica import is_void
from simulation.exhaustive.scope import BASE, Scope
from simulation.exhaustive.search import Count, Failed, explore
from simulation.exhaustive.space import Space

pytestmark = pytest.mark.sim

ROOT = Path(__file__).resolve().parents[2]
ALL_TRAFFIC = Traffic(pre_votes=True, discovery=True, resignation=True)
TINY = Scope(epochs=2, appends=0, in_flight=3, losses=0, crashes=0)
REDUCED = Scope(epochs=2, appends=1, in_flight=1, losses=1, crashes=0)
WITH_CRASH = Scope(epochs=2, appends=0, in_flight=1, losses=0, crashes=1)
WITH_APPEND = Scope(epochs=2, appends=1, in_flight=1, losses=0, crashes=0)
FULL_TRAFFIC = Scope(1, 0, 1, 1, 0, has_leader=False, traffic=ALL_TRAFFIC)

Explored = tuple[Space, Count, Failed | None]


@pytest.fixture(scope="module")
def with_crash() -> Explored:
    return explore(WITH_CRASH)


def counts(count: Count) -> tuple[int, int, int, int]:
    return count.states, count.transitions, count.depth, count.replica_states


# -- complete scopes


@pytest.mark.parametrize(
    ("scope", "expected"),
    [
        (TINY, (10803, 43578, 28, 236)),
        (REDUCED, (99465, 420328, 43, 1528)),
        (FULL_TRAFFIC, (63065, 379288, 45, 1275)),
    ],
    ids=["no append", "an append and a loss", "all traffic"],
)
def test_every_state_of_a_reduced_scope_is_visited(
    scope: Scope, expected: tuple[int, int, int, int]
) -> None:
    _, count, failed = explore(scope)
    assert failed is None
    assert counts(count) == expected


def test_every_state_with_a_crash_is_visited(with_crash: Explored) -> None:
    _, count, failed = with_crash
    assert failed is None
    assert counts(count) == (18429, 70425, 31, 695)


def test_the_order_of_hashes_does_not_matter() -> None:
    program = (
        "from simulation.exhaustive.scope import Scope\n"
        "from simulation.exhaustive.search import explore\n"
        "space, count, failed = explore(Scope(2, 0, 2, 0, 0))\n"
        "count.seconds = 0.0\n"
        "print(count, failed, space.networks.values[-1])\n"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"PYTHONHASHSEED": seed},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "12345")
    }
    assert len(outputs) == 1


def test_the_command_says_how_much_it_has_seen() -> None:
    result = CliRunner().invoke(main, ["--appends=0", "--losses=0", "--crashes=0"])
    assert result.exit_code == 0
    assert result.stdout.startswith("10803 states, 43578 transitions, depth 28,")
    assert "complete" in result.stdout


# -- what a state is


# The fields that are found by their names in an instance's dictionary, which machine code has not.
@pytest.mark.pure
def test_every_field_of_the_core_and_the_driver_is_accounted_for() -> None:
    space = Space(TINY)
    local = space.replicas.values[space.initial().a]
    bench = host.Host.of(local, ALL_LABELS[0], LEAST_TRAFFIC)
    made_by_hand = {node.RaftNode: bench.node, core.Core: bench.node.core, Driver: bench.driver}
    for kind, fields in FIELDS.items():
        if kind in made_by_hand:
            names = set(vars(made_by_hand[kind]))
        else:
            assert dataclasses.is_dataclass(kind)
            names = {field.name for field in dataclasses.fields(kind)}
        assert names == set(fields), kind


def test_every_mutable_part_of_the_core_is_accounted_for() -> None:
    modules = (core, core_parts, log_view, roles)
    parts = [value for module in modules for value in vars(module).values()]
    mutable = {
        part
        for part in parts
        if isinstance(part, type)
        and dataclasses.is_dataclass(part)
        and part.__module__ in {module.__name__ for module in modules}
        and not part.__dataclass_params__.frozen  # type: ignore[attr-defined]  # not in typeshed
    }
    assert mutable <= set(FIELDS)


def test_a_replica_survives_being_frozen_and_thawed(with_crash: Explored) -> None:
    space, _, _ = with_crash
    for local in space.replicas.values:
        for labels in ALL_LABELS:
            thawed = thaw(local.node, labels, local.log, len(local.pending))
            assert freeze(thawed, labels, local.log, 0, LEAST_TRAFFIC) == local.node


def test_what_a_state_leaves_out_changes_nothing(
    with_crash: Explored, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole scope once more, with other values in every field that is not kept."""

    def thaw_otherwise(*args: Any) -> node.RaftNode:
        thawed = thaw(*args)
        (
            thawed.core.election_attempts,
            thawed.core.bootstrap.heard_cluster_id,
            thawed.core.problem,
        ) = (
            5,
            "other",
            "none",
        )
        thawed.core.known_leader.has_ended = thawed.leader is not None
        if thawed.leader is not None:
            thawed.core.voted = thawed.local
        _fill_in(thawed.core.state, thawed)
        return thawed

    monkeypatch.setattr(host, "thaw", thaw_otherwise)
    monkeypatch.setattr(host, "draw", lambda bound: bound - 1)
    _, other, failed = explore(WITH_CRASH)
    assert failed is None
    assert counts(other) == counts(with_crash[1])


def _fill_in(state: roles.State, thawed: node.RaftNode) -> None:
    match state:
        case roles.Unattached():
            state.election_deadline_ms += 5000
            state.leaderless_voters = set(thawed.core.other_voters()[:1])
        case roles.Follower():
            state.fetch_deadline_ms += 7000
            thawed.core.known_leader.last_contact_ms = NOW_MS
        case roles.Candidate():
            state.is_contested, state.deadline_ms = True, LATER_MS + 1
        case roles.Leader():
            state.check_quorum_deadline_ms += 3000
            for progress in state.progress.values():
                progress.last_fetch_ms, progress.last_caught_up_ms = NOW_MS - 5, NOW_MS - 7
                progress.leader_end_at_last_fetch, progress.begin_due_ms = 1, LATER_MS + 9
        case roles.Resigned():
            state.successors = thawed.core.other_voters()


def test_all_names_of_a_state_have_one_key() -> None:
    space = Space(Scope(epochs=2, appends=1, in_flight=2, losses=1, crashes=0))
    seen, states = set(), [space.initial()]
    for state in states:
        for _, new in space.successors(state):
            key = space.key(new)
            assert space.key(space.state(key)) == key
            if key not in seen and len(states) < 300:
                seen.add(key)
                states.append(new)
    mirror, networks = space.replicas.mirror, space.networks
    for state in states:
        turned = state._replace(
            a=mirror[state.a],
            b=mirror[state.c],
            c=mirror[state.b],
            network=networks.turn(state.network, 3),
            leaders=0,
        )
        assert space.key(turned) == space.key(state._replace(leaders=0))


def test_any_of_the_messages_that_do_not_all_find_room_get_through() -> None:
    networks = Networks(limit=2)
    for epoch in (2, 3):
        networks.message_number(Message(1, BEGIN, False, True, RequestBody(epoch)))
    (two,) = networks.join(0, (0, 3))
    assert networks.values[two] == (0, 3)
    (one,) = networks.join(0, (0,))
    assert [networks.values[n] for n in networks.join(one, (3, 6))] == [(0, 3), (0, 6)]
    assert networks.join(two, (6,)) == (two,)


def test_a_request_that_still_has_a_sender_is_never_void(with_crash: Explored) -> None:
    space, _, _ = with_crash
    for message in space.networks.messages:
        if message.is_wanted:
            assert not any(is_void(message, local) for local in space.replicas.values)


# -- properties


def test_equal_epochs_at_an_offset_over_different_records_are_noticed() -> None:
    one, other = (*BASE, (2, 0), (3, 1)), (*BASE, (2, 1), (3, 1))
    assert check_logs([one, one, one]) is None
    assert check_logs([one, (*BASE, (3, 1)), BASE]) is None
    assert "log matching" in (check_logs([BASE, one, other]) or "")


def test_a_committed_record_on_one_disk_is_noticed() -> None:
    longer = (*BASE, (2, 0))
    assert check_disks([longer, longer, BASE], longer) is None
    assert "high watermark" in (check_disks([longer, BASE, BASE], longer) or "")


# -- it can fail


def an_answer_before_its_vote_is_on_disk(patch: pytest.MonkeyPatch) -> None:
    def answer(self: core.Core, reply_to: int, reply: Reply) -> None:
        self.effects.append(SendReply(reply_to=reply_to, reply=reply, after=0))

    patch.setattr(core.Core, "reply", answer)


def a_leader_that_counts_what_it_has_not_synced(patch: pytest.MonkeyPatch) -> None:
    real = high_watermark.advance_high_watermark

    def advance(core: core.Core, leader: roles.Leader) -> None:
        synced, core.log.synced_end_offset = core.log.synced_end_offset, core.log.end_offset
        real(core, leader)
        core.log.synced_end_offset = synced

    for module in (high_watermark, fetch_requests):
        patch.setattr(module, "advance_high_watermark", advance)


def a_fetch_before_its_records_are_on_disk(patch: pytest.MonkeyPatch) -> None:
    real = core.Core.send

    def send(self: core.Core, to: Any, request: Any, after: int) -> None:
        real(self, to, request, 0 if isinstance(request, Fetch) else after)

    patch.setattr(core.Core, "send", send)


def a_majority_of_one(patch: pytest.MonkeyPatch) -> None:
    less = SimpleNamespace(**vars(quorum))
    less.is_won = lambda granted, voters: granted >= quorum.majority(voters) - 1
    patch.setattr(campaign, "quorum", less)


def a_vote_for_a_shorter_log(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(vote_requests, "is_up_to_date", lambda core, last: True)


def a_second_vote(patch: pytest.MonkeyPatch) -> None:
    def grant(core: core.Core, event: Any) -> bool:
        core.voted = event.candidate
        core.persist()
        return True

    patch.setattr(vote_requests, "_grants_vote", grant)


def a_vote_that_a_restart_forgets(patch: pytest.MonkeyPatch) -> None:
    real = node.RaftNode.start

    def start(self: node.RaftNode, now_ms: int) -> Any:
        self.core.voted = None
        return real(self, now_ms)

    patch.setattr(node.RaftNode, "start", start)


def a_leader_that_ignores_the_epoch_of_a_position(patch: pytest.MonkeyPatch) -> None:
    def contains(self: log_view.LogView, position: OffsetAndEpoch) -> bool:
        return position.offset <= self.end_offset

    patch.setattr(log_view.LogView, "contains", contains)


def a_smaller_epoch_that_is_adopted(patch: pytest.MonkeyPatch) -> None:
    real = quorum_epochs._check_sender

    def follow(core: core.Core, cluster: Any, epoch: int, *more: Any) -> Any:
        if epoch < core.epoch:
            become_unattached(core, Trigger.HIGHER_EPOCH, epoch)
        return real(core, cluster, epoch, *more)

    patch.setattr(quorum_epochs, "_check_sender", follow)


def a_cut_below_what_is_committed(patch: pytest.MonkeyPatch) -> None:
    real = log_view.LogView.diverging_from

    def diverging(self: log_view.LogView, position: OffsetAndEpoch) -> OffsetAndEpoch:
        found = real(self, position)
        return found._replace(offset=found.offset - 1)

    def truncate(core: core.Core, request: Any, diverging: OffsetAndEpoch) -> None:
        truncate_log(core, core.log.truncation_point(diverging))

    patch.setattr(log_view.LogView, "diverging_from", diverging)
    patch.setattr(fetching, "_truncate", truncate)


@pytest.mark.pure
@pytest.mark.parametrize(
    ("plant", "scope", "named"),
    [
        (an_answer_before_its_vote_is_on_disk, WITH_CRASH, "two votes in epoch 3"),
        (a_leader_that_counts_what_it_has_not_synced, WITH_APPEND, "high watermark: the committed"),
        (a_fetch_before_its_records_are_on_disk, WITH_APPEND, "high watermark: the committed"),
        (a_majority_of_one, WITH_APPEND, "two leaders in epoch 3"),
        (a_vote_for_a_shorter_log, WITH_APPEND, "leader completeness"),
        (a_second_vote, WITH_APPEND, "vote changed in epoch 3"),
        (a_vote_that_a_restart_forgets, WITH_CRASH, "vote on disk changed in epoch 3"),
        (
            a_leader_that_ignores_the_epoch_of_a_position,
            WITH_APPEND,
            "high watermark: the committed",
        ),
        (a_smaller_epoch_that_is_adopted, WITH_APPEND, "epoch 3 loses its leader to epoch 2"),
        (a_cut_below_what_is_committed, WITH_APPEND, "below the committed offset"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_what_is_planted_is_found(
    plant: Callable[[pytest.MonkeyPatch], None],
    scope: Scope,
    named: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant(monkeypatch)
    space, _, failed = explore(scope)
    assert failed is not None
    assert named in failed.text
    told = list(lines(space, failed))
    assert told[-1] == f"    violated: {failed.text}"
    assert any(line.startswith(f"{len(failed.way):>2}. ") for line in told)


@pytest.mark.pure
def test_a_violation_is_told_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    an_answer_before_its_vote_is_on_disk(monkeypatch)
    result = CliRunner().invoke(main, ["--appends=0", "--losses=0"])
    assert result.exit_code == 1
    assert " 1. replica 2: election timer runs out" in result.stdout
    assert "Vote from 2 to 3: epoch 3, log end 3 of epoch 2" in result.stdout
    assert "crashes and starts again; 0 of 2 pending writes are on disk" in result.stdout
    assert "violated: two votes in epoch 3" in result.stdout
