"""Registration of a replica with its leader: its endpoints, and that it wants to vote (auto-join).

A follower or observer asks at most one thing in each fetch timeout, the first that applies:

1. As a voter that is reached elsewhere than the voter set says: UpdateVoter.
2. As an observer whose endpoints this leader does not know: UpdateVoter.
3. With auto-join, as an observer with the id of a voter, whose disk was lost: AddVoter, and once that is
   committed RemoveVoter for the lost one. A replica that was removed on purpose does not.

A Kafka quorum takes such requests of its voters only: an observer sends none. A witness sends
UpdateVoter, too, if the voter set lacks its kraft.version range, and while the log names no voters
(kraft.version 0) once to each leader, so that kraft.version can be raised.

Sources: KIP-853 (UpdateRaftVoter, automatic joining), KIP-856 (disk failure recovery).
"""

from __future__ import annotations

from quorumd.raft.core import Core
from quorumd.raft.effects import AddVoter, RemoveVoter, UpdateVoter
from quorumd.raft.errors import KafkaError
from quorumd.raft.events import VoterChangeResponseReceived
from quorumd.raft.leader_discovery import absorb
from quorumd.raft.roles import MOVE_REMEMBERED_MS, Follower, Observer
from quorumd.raft.types import Voter


def register_with_leader(core: Core) -> None:
    """Send the registration that is due; this is checked once every fetch timeout."""
    leader = core.leader
    if (
        leader is None
        or core.known_leader.last_contact_ms is None
        or (core.log.voters_offset < 0 and not core.config.is_kafka_log)
        or not isinstance(core.state, (Follower, Observer))
    ):
        return
    request = registration_request(core)
    if request is None or core.can_send(leader, type(request)):
        core.registration.next_ms = core.now_ms + core.config.fetch_timeout_ms
        if request is not None:
            _note_overwritten(core)
            core.send(leader, request, after=core.writes.state)


def _note_overwritten(core: Core) -> None:
    """A replica whose endpoints another process corrects again and again runs on a copied directory, too.

    Only voter sets behind the last such correction count, so that a replica which was moved back counts once.
    """
    registration, latest = core.registration, core.log.voter_entries[-1]
    own, here = latest.record.voters.find(core.local), set(core.config.endpoints)
    if own is None or set(own.endpoints) == here or latest.offset <= registration.overwritten_at:
        return
    since = registration.overwritten_at
    sets = [each.record.voters for each in core.log.voter_entries if each.offset > since]
    named = [voter for voters in sets if (voter := voters.find(core.local)) is not None]
    if not any(set(voter.endpoints) == here for voter in named):
        return
    is_again = core.now_ms < registration.overwritten_ms + MOVE_REMEMBERED_MS
    registration.overwritten_times = registration.overwritten_times + 1 if is_again else 1
    registration.overwritten_ms = core.now_ms
    registration.overwritten_at, registration.elsewhere = latest.offset, own.endpoints


def registration_request(core: Core) -> UpdateVoter | AddVoter | RemoveVoter | None:
    """The first of the three requests that applies now; None if none does."""
    config, endpoints = core.config, core.config.endpoints
    if core.local.uuid is None or not endpoints:
        return None
    own = core.voters.find(core.local)
    if config.is_kafka_log:
        return _update_at_kafka(core, own)
    if own is not None and own.endpoints != endpoints:
        return UpdateVoter(epoch=core.epoch, endpoints=endpoints)
    if own is None and core.registration.registered_in != core.context:
        return UpdateVoter(epoch=core.epoch, endpoints=endpoints)
    rivals = [key for key in core.voters.keys if key.id == core.local.id and key != core.local]
    if not config.auto_join or core.was_removed or not rivals:
        return None
    return AddVoter(endpoints=endpoints) if own is None else RemoveVoter(key=rivals[0])


def _update_at_kafka(core: Core, own: Voter | None) -> UpdateVoter | None:
    """The request that tells a Kafka leader of a voter (KIP-853, UpdateRaftVoter); None without need."""
    if own is None or not core.config.is_witness:
        return None
    if core.log.voters_offset < 0:
        is_known = core.registration.registered_in == core.context
    else:
        # Kafka writes the endpoints in an order of its own.
        is_known = set(own.endpoints) == set(core.config.endpoints) and own.max_kraft_version >= 1
    return None if is_known else UpdateVoter(epoch=core.epoch, endpoints=core.config.endpoints)


def on_voter_change_response(core: Core, event: VoterChangeResponseReceived) -> None:
    """The leader has done it, or gets the request again."""
    request = core.take(event.request_id)
    if request is None:
        return
    if event.error == KafkaError.UNSUPPORTED_VERSION:
        # Kafka 3.9 and 4.0 at kraft.version 0: they do not raise it, and need not know.
        core.registration.registered_in = core.context
    if event.hint is not None and not absorb(core, request, event.error, event.hint):
        return
    if event.error is not None:
        what = type(request.request).__name__
        core.report(f"{request.to} refuses {what}: {event.error}: {event.message or 'no reason'}")
        core.back_off(request)
    elif isinstance(request.request, UpdateVoter):
        core.registration.registered_in = core.context
