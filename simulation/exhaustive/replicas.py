"""The states that a single replica can be in, as numbers, and every step that leads on from them."""

from __future__ import annotations

from typing import NamedTuple

from quorumd.raft import roles
from simulation.exhaustive.labels import ALL_LABELS, SIZE, mirrored
from simulation.exhaustive.messages import SLOTS, Message, Records, Slot, place_and_kind, slot_of
from simulation.exhaustive.networks import Networks
from simulation.exhaustive.replica import (
    ClientAppend,
    Delivery,
    Expiry,
    Happening,
    Local,
    Outcome,
    RequestFailure,
    Sync,
    TimerKind,
    awaited,
    crashes,
    give_up,
    is_empty,
    is_void,
    mirrored_local,
    owed,
    timers,
)
from simulation.exhaustive.scope import Scope
from simulation.exhaustive.step import step

Flights = tuple[int, ...]


class Step(NamedTuple):
    """An `Outcome` in numbers."""

    happening: Happening
    replica: int
    sent: tuple[Flights, Flights, Flights]
    """The messages as flights, for each position of the sender."""
    forgotten: tuple[Slot, ...]
    committed: int
    elected_in: int
    violation: str | None


Steps = tuple[Step, ...]


class Replicas:
    """A replica in one state takes the same step on the same happening, so the core runs once for both.

    It runs six times, under all assignments of ids to places, and must do the same each time: then states
    that differ only in ids go on alike.
    """

    def __init__(self, scope: Scope, networks: Networks) -> None:
        self.scope = scope
        self.networks = networks
        self.steps_taken = 0
        self.values: list[Local] = []
        self._numbers: dict[Local, int] = {}
        self.mirror: list[int] = []
        self.leads: list[bool] = []
        self.awaited: list[tuple[int, int, int]] = []
        """Requests that wait for a response: a bit for each slot, for each position of the replica."""
        self.owed: list[tuple[int, int, int]] = []
        """Requests of others that the replica has to respond to, likewise."""
        self.logs: list[int] = []
        """The number of the log in memory and on disk, in `log_values`."""
        self.log_values: list[tuple[Records, Records]] = []
        self._log_numbers: dict[tuple[Records, Records], int] = {}
        self.prefixes: list[Records] = [()]
        self._prefix_numbers: dict[Records, int] = {(): 0}
        self.own: list[Steps | None] = []
        self._delivered: dict[tuple[int, int], Steps] = {}
        self._failed: dict[tuple[int, Slot], Step] = {}
        self._appended: dict[tuple[int, int], Steps] = {}
        self._crashed: dict[int, Steps] = {}
        self._given_up: dict[tuple[int, Slot], int] = {}
        self._void: dict[tuple[int, int], bool] = {}
        self._empty: dict[tuple[int, int], bool] = {}

    # -- numbers

    def number(self, local: Local) -> int:
        """The number of a replica's state; a new one, with its mirror, if it was not seen before."""
        number = self._numbers.get(local)
        if number is None:
            twin = mirrored_local(local, self.scope.traffic)
            number = self._enter(local)
            other = number if twin == local else self._enter(twin)
            self.mirror += [other] if other == number else [other, number]
        return number

    def _enter(self, local: Local) -> int:
        number = len(self.values)
        self._numbers[local] = number
        self.values.append(local)
        self.own.append(None)
        self.leads.append(local.node.role is roles.Role.LEADER)
        logs = (local.log, local.records)
        self.logs.append(self._log_numbers.setdefault(logs, len(self.log_values)))
        if self.logs[-1] == len(self.log_values):
            self.log_values.append(logs)
        waiting = sum(1 << slot for slot in awaited(local, self.scope.traffic))
        self.awaited.append((waiting, waiting << SLOTS, waiting << 2 * SLOTS))
        bits = [0] * SIZE
        for slot in owed(local):
            place, kind = place_and_kind(slot)
            for position in range(SIZE):
                asker = (position + place) % SIZE
                bits[position] |= 1 << (SLOTS * asker + slot_of(mirrored(place), kind))
        self.owed.append((bits[0], bits[1], bits[2]))
        return number

    def prefix_number(self, records: Records) -> int:
        """The number of a committed history."""
        number = self._prefix_numbers.setdefault(records, len(self.prefixes))
        if number == len(self.prefixes):
            self.prefixes.append(records)
        return number

    # -- steps

    def _step(self, replica: int, happening: Happening) -> Step | None:
        """Step of a replica; None if its result is outside the scope."""
        local, traffic = self.values[replica], self.scope.traffic
        outcome = step(local, happening, ALL_LABELS[0], traffic)
        self.steps_taken += 1
        for labels in ALL_LABELS[1:]:
            other = step(local, happening, labels, traffic)
            is_broken = outcome.violation is not None and other.violation is not None
            assert is_broken or other == outcome, f"ids make a difference: {happening} of {local}"
        if self._is_outside(outcome):
            return None
        return Step(
            happening,
            self.number(outcome.local),
            self._flights(outcome.sent),
            outcome.forgotten,
            self.prefix_number(outcome.committed),
            outcome.elected_in,
            outcome.violation,
        )

    def _flights(self, sent: tuple[Message, ...]) -> tuple[Flights, Flights, Flights]:
        numbers = sorted(self.networks.message_number(message) for message in sent)
        a, b, c = (
            tuple(number * SIZE + position for number in numbers) for position in range(SIZE)
        )
        return a, b, c

    def _is_outside(self, outcome: Outcome) -> bool:
        """True for an epoch beyond the last one, and for a campaign that could only lead there."""
        last, node = self.scope.last_epoch, outcome.local.node
        return node.epoch > last or (node.epoch == last and node.role is roles.Role.PROSPECTIVE)

    def own_steps(self, replica: int) -> Steps:
        """Steps of a replica that time and its disk cause."""
        found = self.own[replica]
        if found is None:
            found = self.own[replica] = tuple(self._find_own_steps(replica))
        return found

    def _find_own_steps(self, replica: int) -> list[Step]:
        local = self.values[replica]
        groups = len(local.groups)
        syncs = [Sync(count) for count in sorted({1, groups}) if groups]
        found = []
        happenings: list[Happening] = [*syncs, *timers(local, self.scope.traffic)]
        for happening in happenings:
            taken = self._step(replica, happening)
            if taken is None:
                continue
            # A delay that ends in vain might as well end later.
            is_retry = isinstance(happening, Expiry) and happening.timer is TimerKind.RETRY
            requests = self.values[taken.replica].node.in_flight
            is_vain = is_retry and requests == local.node.in_flight
            is_nothing = (taken.replica, taken.sent[0], taken.forgotten) == (replica, (), ())
            if taken.violation is not None or not (is_vain or is_nothing):
                found.append(taken)
        return found

    def delivered(self, replica: int, message: int) -> Steps:
        """The step that a message causes; empty if that is outside the scope."""
        key = (replica, message)
        found = self._delivered.get(key)
        if found is None:
            taken = self._step(replica, Delivery(self.networks.messages[message]))
            found = self._delivered[key] = () if taken is None else (taken,)
        return found

    def appended(self, replica: int, value: int) -> Steps:
        """The step that a client's append causes, likewise."""
        key = (replica, value)
        found = self._appended.get(key)
        if found is None:
            taken = self._step(replica, ClientAppend(value))
            found = self._appended[key] = () if taken is None else (taken,)
        return found

    def crashed(self, replica: int) -> Steps:
        """The steps of all crashes that differ."""
        found = self._crashed.get(replica)
        if found is None:
            steps = [self._step(replica, crash) for crash in crashes(self.values[replica])]
            found = self._crashed[replica] = tuple(taken for taken in steps if taken is not None)
        return found

    def failed(self, replica: int, slot: Slot) -> Step:
        """The step in which the request in this slot fails."""
        key = (replica, slot)
        found = self._failed.get(key)
        if found is None:
            found = self._step(replica, RequestFailure(slot))
            assert found is not None, "to give a request up starts no epoch"
            self._failed[key] = found
        return found

    # -- what others do

    def given_up(self, replica: int, slot: Slot) -> int:
        """The replica after another one has given up the request that it has in this slot."""
        key = (replica, slot)
        found = self._given_up.get(key)
        if found is None:
            found = self._given_up[key] = self.number(give_up(self.values[replica], slot))
        return found

    def is_void(self, message: int, receiver: int) -> bool:
        """See `replica.is_void`."""
        key = (message, receiver)
        found = self._void.get(key)
        if found is None:
            value = self.networks.messages[message]
            found = self._void[key] = is_void(value, self.values[receiver])
        return found

    def is_empty(self, message: int, receiver: int) -> bool:
        """See `replica.is_empty`."""
        key = (message, receiver)
        found = self._empty.get(key)
        if found is None:
            value = self.networks.messages[message]
            found = self._empty[key] = is_empty(value, self.values[receiver])
        return found
