"""Carries out the effects of the rules, in order, and passes events to them.

The driver makes no decision. It holds an effect back until the write that the effect names is on disk,
keeps one timer, and passes everything else on: records to the log, requests to peers, replies to request
handlers, news to listeners. It knows no socket, thread or clock, so that a simulator can run it as it is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol

from quorumd.raft.effects import (
    AdoptClusterId,
    AnnounceHighWatermark,
    AnnounceRole,
    AnnounceVoters,
    AppendClient,
    AppendControl,
    AppendFetched,
    CancelHeldRequests,
    DeleteLogPrefix,
    DropSnapshot,
    Effect,
    Halt,
    PersistQuorumState,
    PersistRemoval,
    Report,
    ResetLog,
    SendReply,
    SendRequest,
    StoreSnapshotChunk,
    TruncateLog,
    VerifySnapshot,
)
from quorumd.raft.events import Event, TimerFired, WriteCompleted
from quorumd.raft.node import RaftNode
from quorumd.raft.types import SnapshotId

HELD: Final = frozenset({SendReply, SendRequest, VerifySnapshot})
"""Effects that may have to wait for a write."""


class PartitionStorage(Protocol):
    """The log and its disk, which take records and state in the order of the calls."""

    def append_control(self, effect: AppendControl) -> None: ...
    def append_client(self, effect: AppendClient) -> None: ...
    def append_fetched(self, effect: AppendFetched) -> None: ...
    def truncate(self, effect: TruncateLog) -> None: ...
    def persist(self, effect: PersistQuorumState) -> None: ...
    def store_chunk(self, effect: StoreSnapshotChunk) -> None: ...
    def drop_chunks(self, effect: DropSnapshot) -> None: ...
    def reset(self, effect: ResetLog) -> None: ...
    def delete_prefix(self, effect: DeleteLogPrefix) -> None: ...
    def flush(self) -> None:
        """The effects of this event are all there: let the disk begin."""


class PartitionListener(Protocol):
    """Is called for effects that concern neither disk nor peers: roles, commits, snapshots, failures."""

    def on_high_watermark(self, effect: AnnounceHighWatermark) -> None: ...
    def on_role(self, effect: AnnounceRole) -> None: ...
    def on_voters(self, effect: AnnounceVoters) -> None: ...
    def on_cluster_id(self, cluster_id: str) -> None: ...
    def on_removed(self) -> None:
        """This replica was taken out of the voter set."""

    def on_snapshot_copied(self, snapshot: SnapshotId) -> None:
        """Has a snapshot that is all there verified, and passes the result to the rules."""

    def on_report(self, reason: str) -> None: ...
    def on_halt(self, reason: str) -> None: ...


class Timer(Protocol):
    """One timer: setting it again replaces the earlier one."""

    def set(self, deadline_ms: int) -> None: ...


class Driver:
    """Runs one `RaftNode`. `now_ms` is a clock that never goes back.

    `send_request` and `send_reply` take requests to peers, and replies to requests.
    """

    def __init__(
        self,
        node: RaftNode,
        records: PartitionStorage,
        send_request: Callable[[SendRequest], None],
        send_reply: Callable[[SendReply], None],
        listener: PartitionListener,
        timer: Timer,
        now_ms: Callable[[], int],
    ) -> None:
        self.node = node
        self._records = records
        self._timer = timer
        self._now_ms = now_ms
        self._completed_write = 0
        self._saved_write = 0
        """The last of the quorum state that is on disk, perhaps before what was to be written before it."""
        self._held: list[SendRequest | SendReply | VerifySnapshot] = []
        self._armed_ms: int | None = None
        self._stepping = False
        self._is_stopped = False
        self._waiting: deque[Event] = deque()
        self._perform: dict[type[Effect], Callable[[Any], None]] = {
            AppendClient: records.append_client,
            AppendControl: records.append_control,
            AppendFetched: records.append_fetched,
            TruncateLog: records.truncate,
            PersistQuorumState: records.persist,
            StoreSnapshotChunk: records.store_chunk,
            DropSnapshot: records.drop_chunks,
            VerifySnapshot: lambda effect: listener.on_snapshot_copied(effect.snapshot),
            ResetLog: records.reset,
            DeleteLogPrefix: records.delete_prefix,
            SendRequest: send_request,
            SendReply: send_reply,
            CancelHeldRequests: self._cancel_held_requests,
            AnnounceHighWatermark: listener.on_high_watermark,
            AnnounceRole: listener.on_role,
            AnnounceVoters: listener.on_voters,
            AdoptClusterId: lambda effect: listener.on_cluster_id(effect.cluster_id),
            PersistRemoval: lambda effect: listener.on_removed(),
            Report: lambda effect: listener.on_report(effect.reason),
            Halt: lambda effect: listener.on_halt(effect.reason),
        }

    def hold(self) -> None:
        """Have events wait for the start: there may be some, for listeners are open by then."""
        self._stepping = True

    def start(self) -> None:
        """Begin; call once, before any event that does not wait."""
        self._carry_out(self.node.start(self._now_ms()))

    def stop(self) -> None:
        """Take no event any more: disk and peers, which carry effects out, are about to close."""
        self._is_stopped = True
        self._held.clear()
        self._waiting.clear()

    def handle(self, event: Event) -> None:
        """Let the rules decide on an event, and carry out their effects.

        An event that comes up while effects are carried out waits until they all are.
        """
        if self._is_stopped:
            return
        if self._stepping:
            self._waiting.append(event)
        else:
            self._carry_out(self.node.step(event, self._now_ms()))

    def on_writes_completed(self, write: int) -> None:
        """Let everything go that waited for this write or an earlier one; then pass it to the rules."""
        assert write >= self._completed_write, "writes complete in order"
        self._completed_write = write
        if self._held:
            held, self._held = self._held, []
            self._waiting.appendleft(WriteCompleted(write))
            self._carry_out(held)
        else:
            self.handle(WriteCompleted(write))

    def on_state_saved(self, write: int) -> None:
        """Let what waited for this quorum state go, though records before it wait for space."""
        self._saved_write = write
        if self._held:
            held, self._held = self._held, []
            self._carry_out(held)

    def on_timer(self) -> None:
        """The timer went off; it may have been set for a deadline that has moved since."""
        self._armed_ms = None
        if self._is_stopped:
            return
        deadline = self.node.next_deadline_ms()
        if deadline is not None and deadline <= self._now_ms():
            self.handle(TimerFired())
        else:
            self._arm()

    def catch_up(self) -> None:
        """Take what is due before its timer goes off: this process may have stood still for long."""
        if self._armed_ms is not None and self._armed_ms <= self._now_ms():
            self.on_timer()

    def _carry_out(self, effects: Iterable[Any]) -> None:
        """Do what was asked for, and what comes of the events that come up meanwhile; then let the disk
        begin, and wait for the next deadline."""
        perform = self._perform
        self._stepping = True
        try:
            while True:
                for effect in effects:
                    kind = type(effect)
                    if (
                        kind in HELD
                        and effect.after > self._completed_write
                        and (effect.after > self._saved_write or effect.waits_for_records)
                    ):
                        self._held.append(effect)
                    else:
                        perform[kind](effect)
                if not self._waiting:
                    break
                effects = self.node.step(self._waiting.popleft(), self._now_ms())
        finally:
            self._stepping = False
        self._arm()
        self._records.flush()

    def _cancel_held_requests(self, effect: CancelHeldRequests) -> None:
        self._held = [held for held in self._held if not isinstance(held, SendRequest)]

    def _arm(self) -> None:
        """Set the timer if the next deadline is before it; a late timer costs less than a reset."""
        deadline = self.node.next_deadline_ms()
        if deadline is not None and (self._armed_ms is None or deadline < self._armed_ms):
            self._armed_ms = deadline
            self._timer.set(deadline)
