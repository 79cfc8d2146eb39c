"""The state of links to other nodes: why a peer is not reached, in words; which are plaintext still."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from quorumd.raft.effects import Peer
from quorumd.raft.events import ConnectionLost, ConnectionMade, ConnectionRefused, Event
from quorumd.raft.types import Address, ReplicaKey
from quorumd.security.errors import (
    CertificateProblem,
    HandshakeBroken,
    PeerSpeaksPlaintext,
    PeerSpeaksTls,
)
from quorumd.server.model.kafka_drift import METADATA_VERSION, KafkaDrift
from quorumd.server.model.logs import Logger, RateLimit
from quorumd.server.model.peer_calls import HungUp
from quorumd.server.peers.peer_addresses import PeerAddresses
from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.messages.api_versions import ApiVersionsResponse
from quorumd.wire.registry import CONTROLLER_KEYS

LOG: Final = Logger("peers")

NO_RIGHT: Final = ErrorCode.CLUSTER_AUTHORIZATION_FAILED.name
"""A Kafka process ends at this error. A node asks again: an operator has to permit it."""
FOREIGN: Final = ErrorCode.INCONSISTENT_CLUSTER_ID.name
OTHER_REPLICA: Final = ErrorCode.INVALID_VOTER_KEY.name
SHOWN_ERRORS: Final = frozenset((NO_RIGHT, FOREIGN, OTHER_REPLICA))
"""Errors of peers that an operator has to learn of."""


class KafkaPeer(Exception):
    """A node of a Kafka quorum, whose log this node must neither copy nor vote in."""

    def __init__(self) -> None:
        super().__init__(
            "it belongs to an Apache Kafka quorum, and this directory was formatted for a quorumd log, whose "
            "records end Kafka's nodes: it is asked for nothing. To observe that quorum, or to be its "
            "witness, format another directory with `quorumd format --kafka-log`"
        )


HANG_UPS_LASTING: Final = 3
"""So many, one after the other, are no process that ends."""
SHOWN_S: Final = 60.0
"""Time for which a hang-up or a foreign node is shown: a peer that is asked is asked again in much less."""
OTHER_SHOWN_S: Final = 10.0
"""The same for another replica: a peer that was found by itself is not asked again where it was."""


@dataclass(frozen=True, slots=True)
class _HangUps:
    """Connections to one peer that it closed instead of responding, one after the other."""

    count: int
    at_s: float
    text: str


@dataclass(slots=True)
class PeerLinks:
    """Of one node, by the name of the peer: "node 2"."""

    problems: dict[str, str] = field(default_factory=dict)
    """The reason why each peer was not reached when that was last tried; none for those that were."""
    mismatches: dict[str, str] = field(default_factory=dict)
    """Problems among them that only an operator can mend."""
    refusals: dict[str, str] = field(default_factory=dict)
    """Peers that respond with CLUSTER_AUTHORIZATION_FAILED."""
    behind: set[int] = field(default_factory=set)
    """Replicas that have said, by certificate, that their own links are plaintext still."""
    hang_ups: dict[str, _HangUps] = field(default_factory=dict)
    """Of peers that are reached, but have given no response since."""
    strangers: dict[str, tuple[float, str]] = field(default_factory=dict)
    """Nodes of another cluster that responded in place of a peer: when that was last, and in words."""
    others: dict[str, tuple[float, str]] = field(default_factory=dict)
    """The same for other replicas of this cluster."""
    clock: Callable[[], float] = time.monotonic
    lines: RateLimit = field(default_factory=lambda: RateLimit(per_second=0.1, burst=5))

    def note_made(self, name: str, replica_id: int | None, *, is_behind: bool) -> None:
        """A peer was reached."""
        self.problems.pop(name, None)
        self.mismatches.pop(name, None)
        if replica_id is not None:
            (self.behind.add if is_behind else self.behind.discard)(replica_id)

    def note_failed(self, name: str, address: Address, error: BaseException) -> str | None:
        """A peer was not reached there. Returns what an operator has to learn, if that is news."""
        text = in_words(name, address, error)
        if isinstance(error, HungUp):
            return self._note_hung_up(name, text)
        self.hang_ups.pop(name, None)
        is_news = self.problems.get(name) != text
        self.problems[name] = text
        is_lasting = isinstance(error, (CertificateProblem, KafkaPeer))
        if is_lasting and not isinstance(error, HandshakeBroken):
            self.mismatches[name] = text
            return text if is_news else None
        self.mismatches.pop(name, None)
        return None

    def _note_hung_up(self, name: str, text: str) -> str | None:
        before = self.hang_ups.get(name)
        count = 1 if before is None or self._is_old(before) else before.count + 1
        self.hang_ups[name] = _HangUps(count, self.clock(), text)
        return text if count == HANG_UPS_LASTING else None

    def _is_old(self, hang_ups: _HangUps) -> bool:
        return self.clock() - hang_ups.at_s > SHOWN_S

    def _hung_up(self, times: int) -> list[str]:
        recent = (each for each in self.hang_ups.values() if not self._is_old(each))
        return [each.text for each in recent if each.count >= times]

    def is_missing(self, replica_id: int) -> bool:
        """This replica was not reached when that was last tried."""
        name = f"node {replica_id}"
        return name in self.problems or name in self._recent(self.others, OTHER_SHOWN_S)

    def unreachable(self) -> list[str]:
        """Reasons why peers are not reached, or do not respond."""
        others = self._recent(self.others, OTHER_SHOWN_S).values()
        return [*self.problems.values(), *self.foreign().values(), *others, *self._hung_up(1)]

    def foreign(self) -> dict[str, str]:
        """Peers in whose place a node of another cluster responds, and that in words."""
        return self._recent(self.strangers, SHOWN_S)

    def _recent(self, noted: dict[str, tuple[float, str]], shown_s: float) -> dict[str, str]:
        now_s = self.clock()
        return {name: text for name, (at_s, text) in noted.items() if now_s - at_s <= shown_s}

    @property
    def may_forget_problems(self) -> bool:
        """True if the next response may end what is known of a peer."""
        return bool(self.refusals or self.hang_ups or self.strangers or self.others)

    def note_response(
        self, name: str, error: str | None, address: Address, cluster_id: str | None
    ) -> None:
        """A peer has sent a response from there, with this error if it is not None, to a node of this
        cluster."""
        self.hang_ups.pop(name, None)
        if error == NO_RIGHT:
            self.refusals[name] = (
                f"{name} refuses what this node asks of it ({error}): give this node's principal the right "
                "to CLUSTER_ACTION there, or make it a super user. It is asked again"
            )
        else:
            self.refusals.pop(name, None)
        if error == FOREIGN:
            self._note_stranger(name, address, cluster_id)
        else:
            self.strangers.pop(name, None)
        if error == OTHER_REPLICA:
            text = (
                f"{name} is not at {address}: another replica responded there. If nodes have other addresses "
                "now, name these in quorum.voters or quorum.bootstrap.servers of this node; if "
                f"{name} has a new disk, `quorumctl replace-voter {name.rpartition(' ')[2]}`"
            )
            self.others[name] = self.clock(), text
        else:
            self.others.pop(name, None)

    def _note_stranger(self, name: str, address: Address, cluster_id: str | None) -> None:
        text = (
            f"{name} at {address} belongs to another cluster than this node's directory, which is of "
            f"{cluster_id}. After a restore the one that has a directory of the former quorum still is "
            "restored as well; otherwise correct storage.dir, or the addresses"
        )
        if name not in self.foreign() and self.lines.take() is not None:
            LOG.warning("no link to a peer", reason=text)
        self.strangers[name] = self.clock(), text

    def warnings(self) -> list[str]:
        """Problems that an operator has to mend, and migrations to finish."""
        return [
            *self.mismatches.values(),
            *self.refusals.values(),
            *self.foreign().values(),
            *self._hung_up(HANG_UPS_LASTING),
            *(
                f"node {replica_id} connects to others in plaintext still: make its TLS listener the first "
                "of its listeners"
                for replica_id in sorted(self.behind)
            ),
        ]

    def forget(self, name: str, replica_id: int | None = None) -> None:
        """Forgets a node that is no peer any more; `replica_id`: no other peer has that id, either."""
        if replica_id is not None:
            self.behind.discard(replica_id)
        for known in (
            self.problems,
            self.mismatches,
            self.refusals,
            self.hang_ups,
            self.strangers,
            self.others,
        ):
            known.pop(name, None)


class PeerLink:
    """Listens to a channel: reports to the rules whether a voter's process runs, to operators why not, and
    gives the channel other addresses of the peer."""

    def __init__(
        self,
        peer: Peer,
        name: str,
        may_search: bool,
        addresses: PeerAddresses,
        links: PeerLinks,
        handle: Callable[[Event], None],
        drift: KafkaDrift | None,
    ) -> None:
        """`drift` of a node beside Kafka; None: the log is a quorumd log, and Kafka's nodes are no peers."""
        self._drift = drift
        self._peer = peer
        self._name = name
        self._may_search = may_search
        self._addresses = addresses
        self._links = links
        self._handle = handle

    @property
    def peer_id(self) -> int | None:
        return self._peer.id if isinstance(self._peer, ReplicaKey) else None

    def on_announced(self, announced: ApiVersionsResponse) -> None:
        if self._drift is not None:
            self._drift.note_announced(self._name, announced)
        elif _is_of_kafka(announced):
            raise KafkaPeer

    def on_connection_made(self, ip: str, is_behind: bool = False) -> None:
        self._links.note_made(self._name, self.peer_id, is_behind=is_behind)
        self._addresses.note_ip(self._peer, ip)
        self._notify(ConnectionMade)

    def on_connection_lost(self) -> None:
        self._notify(ConnectionLost)

    def on_connection_refused(self) -> None:
        self._notify(ConnectionRefused)

    def on_unreachable(self, address: Address, error: BaseException) -> None:
        text = self._links.note_failed(self._name, address, error)
        if text is not None and self._links.lines.take() is not None:
            LOG.warning("no link to a peer", reason=text)

    def _notify(self, event: type[ConnectionMade | ConnectionLost | ConnectionRefused]) -> None:
        if isinstance(self._peer, ReplicaKey) and self._addresses.speaks_for_its_id(self._peer):
            self._handle(event(id=self._peer.id))

    def elsewhere(self) -> Sequence[Address]:
        """Addresses at which to search for the peer, beside its own."""
        return self._addresses.elsewhere(self._peer) if self._may_search else []


def _is_of_kafka(announced: ApiVersionsResponse) -> bool:
    """A controller, a broker, or a witness that responds to Kafka's brokers: none serves a quorumd log."""
    keys = {key.api_key for key in announced.api_keys}
    features = {each.name for each in announced.supported_features}
    return bool(keys & CONTROLLER_KEYS) or METADATA_VERSION in features


def in_words(name: str, address: Address, error: BaseException) -> str:
    """The reason why no connection could be made there."""
    if isinstance(error, PeerSpeaksPlaintext):
        return f"{name} responded in plaintext on a listener that is TLS here ({address})"
    if isinstance(error, PeerSpeaksTls):
        return (
            f"{name} speaks TLS where this node's links are plaintext ({address}): make a TLS listener "
            "the first of this node's listeners, or name the peer's plaintext port"
        )
    if isinstance(error, ConnectionRefusedError):
        reason = "no process listens there: the connection is refused"
    else:
        reason = "no response in time" if isinstance(error, TimeoutError) else str(error)
    return f"{name} at {address}: {reason}"
