"""Deliberate breakages of the production code, each with the properties of which one must be violated.

They test the simulator: a breakage that it does not find within a few seeds is a hole in its faults or
its checkers. `PLANTED` has them all by name; `applied` breaks the code for as long as a block lasts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from raft import election, leadership, quorum, replication
from raft.core import Core, InFlight, StoredState
from raft.effects import Answered, Effect, Fetch, Halt, Peer, SendAnswer, Vote
from raft.log_view import LogView
from raft.node import RaftNode
from raft.roles import Leader
from raft.transitions import Trigger
from raft.types import Endpoint, OffsetAndEpoch, ReplicaKey, VoterSet
from server import node as server_node
from server.consume import ConsumeHandler, ConsumerFetch, Slot
from server.partition import Partition
from server.produce import ProduceHandler
from server.producer_state import ProducerState
from server.recorder import Recorder
from storage import quorum_state
from storage.filesystem import FileSystem, write_all
from storage.log import Log
from storage.log_writer import LogWriter
from storage.segment import ActiveFile
from wire.batch_header import BatchHeader

Plant = Callable[[object, str, object], None]
"""Replaces an attribute of a module or class: `plant(owner, name, value)`."""

POWER = frozenset({"power loss", "power loss of all", "kill"})
SPLITS = frozenset({"isolate one", "minority partition", "kill"})
LOST_ANSWERS = frozenset({"reset", "kill", "crash at a call"})


@dataclass(frozen=True, slots=True)
class PlantedBug:
    """`what` says which rule is broken, with its source. `caught_by` are names of properties.

    One of them is violated within `seeds` seeds, counted from 1, that run with `faults`; None: with
    those that each seed draws.
    """

    name: str
    what: str
    caught_by: frozenset[str]
    seeds: int
    faults: frozenset[str] | None
    apply: Callable[[Plant], None]

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The code is broken inside the block and whole again behind it."""
        with ExitStack() as stack:

            def plant(owner: object, name: str, value: object) -> None:
                stack.enter_context(patch.object(owner, name, value))

            self.apply(plant)
            yield


PLANTED: dict[str, PlantedBug] = {}


def planted(
    name: str,
    what: str,
    *,
    caught_by: Sequence[str],
    seeds: int,
    faults: frozenset[str] | None = None,
) -> Callable[[Callable[[Plant], None]], Callable[[Plant], None]]:
    """Add an entry to the table."""

    def register(apply: Callable[[Plant], None]) -> Callable[[Plant], None]:
        PLANTED[name] = PlantedBug(name, what, frozenset(caught_by), seeds, faults, apply)
        return apply

    return register


# -- votes and epochs


@planted(
    "granted vote leaves unsynced",
    "An answer does not wait for the quorum state that it tells of (KIP-595, Vote, step 4).",
    caught_by=["votes survive restarts"],
    seeds=5,
)
def _granted_vote_leaves_unsynced(plant: Plant) -> None:
    def wrong(core: Core, reply_to: int, answer: Answered) -> None:
        core.effects.append(SendAnswer(reply_to=reply_to, answer=answer, after=0))

    plant(Core, "answer", wrong)


@planted(
    "own vote leaves unsynced",
    "A candidate asks for votes before its own is on disk (KIP-595, Vote request).",
    caught_by=["votes survive restarts"],
    seeds=5,
)
def _own_vote_leaves_unsynced(plant: Plant) -> None:
    right = Core.send

    def wrong(core: Core, to: Peer, request: Any, after: int) -> None:
        right(core, to, request, 0 if isinstance(request, Vote) else after)

    plant(Core, "send", wrong)


@planted(
    "vote is forgotten at a restart",
    "A replica that comes back takes its stored vote for none (KIP-595, persistent state).",
    caught_by=["votes survive restarts", "one leader per epoch"],
    seeds=12,
    faults=frozenset({"kill", "crash at an effect"}),
)
def _vote_is_forgotten(plant: Plant) -> None:
    right = server_node.stored_state

    def wrong(state: quorum_state.QuorumState) -> StoredState:
        return replace(right(state), voted=None)

    plant(server_node, "stored_state", wrong)


@planted(
    "old epoch is committed by counting",
    "A leader commits records of earlier epochs before one of its own (KIP-595, extra condition on"
    " commitment; Raft, figure 8).",
    caught_by=["a leader commits with a record of its epoch"],
    seeds=12,
    faults=SPLITS,
)
def _old_epoch_is_committed(plant: Plant) -> None:
    right = leadership.advance_high_watermark

    def wrong(core: Core, leader: Leader) -> None:
        start_offset, leader.epoch_start_offset = leader.epoch_start_offset, 0
        right(core, leader)
        leader.epoch_start_offset = start_offset

    plant(leadership, "advance_high_watermark", wrong)
    plant(replication, "advance_high_watermark", wrong)


@planted(
    "shorter log gets a vote",
    "A vote is granted without the up-to-date check (KIP-595, Vote request handling).",
    caught_by=["a leader has every committed record"],
    seeds=54,
)
def _shorter_log_gets_a_vote(plant: Plant) -> None:
    plant(election, "_is_up_to_date", lambda core, last: True)


@planted(
    "a minority elects",
    "One vote less than a majority wins an election (KIP-595, Vote response handling).",
    caught_by=["one leader per epoch", "a leader has every committed record"],
    seeds=24,
)
def _a_minority_elects(plant: Plant) -> None:
    plant(quorum, "is_won", lambda granted, voters: granted >= max(1, voters // 2))


@planted(
    "smaller epoch is followed",
    "BeginQuorumEpoch of an epoch that is over is obeyed (KIP-595: FENCED_LEADER_EPOCH).",
    caught_by=["epoch and high watermark never go back"],
    seeds=24,
)
def _smaller_epoch_is_followed(plant: Plant) -> None:
    right = election._follow_sender

    def wrong(
        core: Core,
        cluster_id: str | None,
        epoch: int,
        leader_id: int | None,
        endpoints: tuple[Endpoint, ...],
    ) -> Answered | None:
        if epoch < core.epoch and leader_id is not None and core.leader is None:
            leader = core.key_of(leader_id)
            core.become_follower(Trigger.LEADER_LEARNT, epoch, leader, endpoints)
            return None
        return right(core, cluster_id, epoch, leader_id, endpoints)

    plant(election, "_follow_sender", wrong)


@planted(
    "leader moves to another epoch",
    "A leader that hears of a higher epoch takes it over and goes on leading (KIP-595, state machine).",
    caught_by=["epoch and high watermark never go back", "one leader per epoch"],
    seeds=24,
)
def _leader_moves_to_another_epoch(plant: Plant) -> None:
    right = election.adopt

    def wrong(
        core: Core, epoch: int, leader_id: int | None, endpoints: tuple[Endpoint, ...]
    ) -> str | None:
        if isinstance(core.state, Leader) and epoch > core.epoch:
            core.epoch, core.voted = epoch, None
            core.persist()
            return None
        return right(core, epoch, leader_id, endpoints)

    plant(election, "adopt", wrong)


# -- replication and commitment


@planted(
    "leader counts its log before the fsync",
    "A leader's own log end counts for the majority at once (KIP-595, Fetch, step 4).",
    caught_by=["the high watermark is synced by a majority"],
    seeds=8,
)
def _leader_counts_unsynced(plant: Plant) -> None:
    right = leadership.advance_high_watermark

    def wrong(core: Core, leader: Leader) -> None:
        core.log.synced_end_offset = core.log.end_offset
        right(core, leader)

    plant(leadership, "advance_high_watermark", wrong)
    plant(replication, "advance_high_watermark", wrong)


@planted(
    "follower acknowledges before its fsync",
    "A Fetch leaves before the records that it acknowledges are on disk (KIP-595, Fetch request).",
    caught_by=["the high watermark is synced by a majority"],
    seeds=5,
)
def _follower_acknowledges_unsynced(plant: Plant) -> None:
    right = Core.send

    def wrong(core: Core, to: Peer, request: Any, after: int) -> None:
        right(core, to, request, core.state_write if isinstance(request, Fetch) else after)

    plant(Core, "send", wrong)


@planted(
    "half of the voters commit",
    "The high watermark is what half of an even number of voters has (KIP-595, Fetch, step 4).",
    caught_by=["the high watermark is synced by a majority"],
    seeds=15,
)
def _half_commits(plant: Plant) -> None:
    plant(quorum, "majority_end_offset", lambda ends: sorted(ends)[len(ends) // 2])


@planted(
    "leader compares offsets alone",
    "A follower's log counts as a prefix whatever its last epoch is (KIP-595, Fetch, step 3).",
    caught_by=["log matching", "a committed prefix is identical everywhere"],
    seeds=24,
    faults=SPLITS,
)
def _leader_compares_offsets(plant: Plant) -> None:
    plant(LogView, "contains", lambda log, position: position.offset <= log.end_offset)


@planted(
    "follower keeps a diverging tail",
    "A follower does not truncate when its leader says so (KIP-595, Fetch response handling, step 2).",
    caught_by=["liveness"],
    seeds=24,
    faults=SPLITS,
)
def _follower_keeps_a_diverging_tail(plant: Plant) -> None:
    def wrong(core: Core, request: InFlight, diverging: OffsetAndEpoch) -> None:
        core.back_off(request)

    plant(replication, "_truncate", wrong)


@planted(
    "new storage id counts for the old",
    "A leader knows voters by id alone, so an empty disk stands in for a lost one (KIP-856, progress"
    " is kept by id and storage id).",
    caught_by=["the high watermark is synced by a majority", "a leader has every committed record"],
    seeds=10,
    faults=frozenset({"lost disk"}),
)
def _new_storage_id_counts(plant: Plant) -> None:
    right = leadership.note_progress

    def wrong(core: Core, leader: Leader, replica: ReplicaKey, end_offset: int) -> None:
        right(core, leader, core.key_of(replica.id), end_offset)

    plant(replication, "note_progress", wrong)


@planted(
    "old copy goes unnoticed",
    "A leader says nothing when a replica has less than it had acknowledged (KIP-595: what is"
    " acknowledged is on disk).",
    caught_by=["an old copy of a directory is noticed"],
    seeds=8,
)
def _old_copy_goes_unnoticed(plant: Plant) -> None:
    plant(leadership, "went_back", lambda replica, acknowledged, end_offset: "somebody went back")


@planted(
    "first voter set names whoever was seen",
    "The first voter set does not wait for every configured voter, and grows by several at once"
    " (KIP-856, bootstrapping, one change at a time).",
    caught_by=["one voter changes at a time", "one leader per epoch"],
    seeds=10,
)
def _first_voter_set_is_partial(plant: Plant) -> None:
    right = leadership.write_first_voters

    def wrong(core: Core) -> None:
        configured = core.config.configured_voters
        seen = [v for v in configured if v.key.id in core.known_uuids or v.key.id == core.local.id]
        config = replace(core.config, configured_voters=VoterSet.of(seen))
        with patch.object(core, "config", config):
            right(core)

    plant(leadership, "write_first_voters", wrong)
    plant(replication, "write_first_voters", wrong)


@planted(
    "recorded offset is one too many",
    "A start halts although the log ends just at the recorded committed offset (KIP-856, disk failures).",
    caught_by=["no node stops without cause"],
    seeds=20,
    faults=POWER,
)
def _recorded_offset_is_one_too_many(plant: Plant) -> None:
    right = RaftNode.start

    def wrong(replica: RaftNode, now_ms: int) -> list[Effect]:
        if 0 < replica.log.end_offset == replica.recorded_offset:
            return [Halt(reason="the log is shorter than what was committed")]
        return right(replica, now_ms)

    plant(RaftNode, "start", wrong)


# -- the disk


@planted(
    "log is never synced",
    "The disk thread writes records and skips the fsync (storage-format, durability).",
    caught_by=["what was synced survives"],
    seeds=10,
    faults=POWER,
)
def _log_is_never_synced(plant: Plant) -> None:
    plant(LogWriter, "sync", lambda writer: None)


@planted(
    "quorum state is renamed, not synced",
    "The rename of quorum-state.json is not made durable by an fsync of its directory (fsync(2)).",
    caught_by=["epoch and high watermark never go back", "votes survive restarts"],
    seeds=8,
    faults=POWER,
)
def _rename_is_not_synced(plant: Plant) -> None:
    def wrong(fs: FileSystem, path: Path, data: bytes) -> None:
        _replace(fs, path, data, is_synced=True)

    plant(quorum_state, "replace_file", wrong)


@planted(
    "quorum state is replaced unsynced",
    "quorum-state.json is renamed into its place before its bytes are synced (fsync(2)).",
    caught_by=["a sound disk is not refused", "epoch and high watermark never go back"],
    seeds=5,
    faults=POWER,
)
def _replaced_unsynced(plant: Plant) -> None:
    def wrong(fs: FileSystem, path: Path, data: bytes) -> None:
        _replace(fs, path, data, is_synced=False)
        fs.fsync_directory(path.parent)

    plant(quorum_state, "replace_file", wrong)


def _replace(fs: FileSystem, path: Path, data: bytes, *, is_synced: bool) -> None:
    temporary = path.with_name(path.name + ".tmp")
    handle = fs.open(temporary, writable=True, create=True)
    fs.truncate(handle, 0)
    write_all(fs, handle, [data], 0)
    if is_synced:
        fs.fsync(handle)
    fs.close(handle)
    fs.rename(temporary, path)


@planted(
    "new segment is not synced in its directory",
    "A roll does not make the new file's name durable before records go into it (fsync(2)).",
    caught_by=["what was synced survives", "a sound disk is not refused"],
    seeds=24,
    faults=POWER,
)
def _new_segment_is_not_synced(plant: Plant) -> None:
    right = ActiveFile.__init__

    def wrong(
        file: ActiveFile,
        fs: FileSystem,
        path: Path,
        size_bytes: int,
        segment_bytes: int,
        *,
        create: bool,
    ) -> None:
        if create:
            fs.close(fs.open(path, writable=True, create=True))
        right(file, fs, path, size_bytes, segment_bytes, create=False)

    plant(ActiveFile, "__init__", wrong)


@planted(
    "recovery cuts one batch too many",
    "After a torn write recovery drops the last whole batch, too (storage-format, recovery).",
    caught_by=["what was synced survives"],
    seeds=36,
    faults=frozenset({"crash at a call"}),
)
def _recovery_cuts_too_much(plant: Plant) -> None:
    right = Log.open

    def wrong(*args: Any, **kwargs: Any) -> Log:
        log = right(*args, **kwargs)
        if log.recovery.cut_bytes and log.log_end_offset:
            log.truncate(log.log_end_offset - 1)
        return log

    plant(Log, "open", staticmethod(wrong))


# -- clients


@planted(
    "consumers see uncommitted records",
    "A consumer's fetch reads up to the log end (Kafka: nothing above the high watermark).",
    caught_by=["reads are prefixes of the committed log"],
    seeds=10,
)
def _consumers_see_uncommitted(plant: Plant) -> None:
    right = ConsumeHandler._read

    def wrong(handler: ConsumeHandler, fetch: ConsumerFetch, slot: Slot) -> None:
        with patch.object(Partition, "committed_offset", Partition.log_end_offset):
            right(handler, fetch, slot)

    plant(ConsumeHandler, "_read", wrong)


@planted(
    "appends are acknowledged before they commit",
    "Produce is answered at the append, not at the high watermark (Kafka, acks=all).",
    caught_by=["acknowledged appends are present exactly once"],
    seeds=5,
)
def _acknowledged_at_append(plant: Plant) -> None:
    right = ProduceHandler._end_turn

    def wrong(handler: ProduceHandler) -> None:
        right(handler)
        handler.on_high_watermark(handler._target.log_end_offset)

    plant(ProduceHandler, "_end_turn", wrong)


@planted(
    "producers are forgotten at a restart",
    "A start does not rebuild the producer state from the log (KIP-98).",
    caught_by=[
        "acknowledged appends are present exactly once",
        "an idempotent producer is not refused",
    ],
    seeds=24,
    faults=frozenset({"crash at an effect", "reset"}),
)
def _producers_are_forgotten(plant: Plant) -> None:
    right = server_node.open_log

    def wrong(*args: Any) -> tuple[Log, ProducerState]:
        return right(*args)[0], ProducerState()

    plant(server_node, "open_log", wrong)


@planted(
    "followers do not note producers",
    "Fetched batches leave the producer state as it is (KIP-98: every replica keeps the same).",
    caught_by=[
        "acknowledged appends are present exactly once",
        "an idempotent producer is not refused",
    ],
    seeds=15,
    faults=LOST_ANSWERS,
)
def _followers_do_not_note(plant: Plant) -> None:
    right = Recorder.append_fetched

    def note(producers: ProducerState, header: BatchHeader) -> None:
        """Forgets it."""

    def wrong(recorder: Recorder, effect: Any) -> None:
        with patch.object(ProducerState, "note", note):
            right(recorder, effect)

    plant(Recorder, "append_fetched", wrong)
