"""The states of a scope, what leads from one to the next, and what must hold in all of them."""

from __future__ import annotations

from typing import NamedTuple

from simulation.exhaustive.labels import SIZE, labels_at, mirrored
from simulation.exhaustive.messages import BEGIN, SLOTS, place_and_kind, slot_of
from simulation.exhaustive.networks import Arrival, Networks, turned_position
from simulation.exhaustive.properties import check_disks, check_logs
from simulation.exhaustive.replica import Delivery, Expiry, Stored, Sync, TimerKind
from simulation.exhaustive.replicas import Flights, Replicas, Step
from simulation.exhaustive.scope import BASE, FIRST_EPOCH, Scope
from simulation.exhaustive.step import started

LOCAL_BITS, NETWORK_BITS, BUDGET_BITS = 20, 24, 5
"""Room in a key: for the number of a replica's state, of a network, and for losses and crashes."""


class State(NamedTuple):
    """The replicas at positions 0, 1 and 2 and the network by number, and what has happened so far.

    `leaders` holds two bits for each epoch: 1 + the position of the leader that it had. `committed` is
    the number of the longest log prefix that any replica said is committed.
    """

    a: int
    b: int
    c: int
    network: int
    leaders: int
    committed: int
    appends: int
    losses: int
    crashes: int


Action = tuple[int, Step | None, Arrival | None]
"""The step of the replica at this position, or the loss of the message."""
Found = list[tuple[Action, State]]


class PropertyViolation(Exception):
    """A property does not hold after this action."""

    def __init__(self, state: State, action: Action, text: str) -> None:
        super().__init__(text)
        self.state, self.action, self.text = state, action, text


class Space:
    """See the module's docstring."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.networks = Networks(scope.in_flight)
        self.replicas = Replicas(scope, self.networks)
        self._fine: set[tuple[int, int, int, int]] = set()

    # -- the start

    def initial(self) -> State:
        """All three have just started from equal disks, in an epoch without leader.

        With a leader, one of them has won the first election since, and everything has settled.
        """
        stored = Stored(FIRST_EPOCH, None, None, len(BASE))
        replica = self.replicas.number(started(stored, BASE, self.scope.traffic))
        base = self.replicas.prefix_number(BASE)
        state = State(replica, replica, replica, 0, 0, base, 0, 0, 0)
        return self._with_leader(state) if self.scope.has_leader else state

    def _with_leader(self, state: State) -> State:
        """Takes steps in a space where every message finds room, and carries the end over to this one."""
        traffic = self.scope.traffic
        scope = Scope(self.scope.epochs, 0, 2 * SLOTS, 0, 0, has_leader=False, traffic=traffic)
        space = Space(scope)
        state = space.initial()
        state = space._settled(state)
        state = space._first(state, Expiry(TimerKind.ELECTION)) or state
        state = space._settled(state)
        assert state.network == 0, "every fetch is parked"
        a, b, c = (self.replicas.number(space.replicas.values[number]) for number in state[:SIZE])
        committed = self.replicas.prefix_number(space.replicas.prefixes[state.committed])
        return state._replace(a=a, b=b, c=c, committed=committed)

    def _settled(self, state: State) -> State:
        """After everything has happened that takes no time, and all know what is committed."""
        found: State | None = state
        while found is not None:
            state = found
            parked = Expiry(TimerKind.PARKED_FETCH)
            found = self._first(state, Delivery, Sync) or self._first(state, parked)
        return state

    def _first(self, state: State, *wanted: object) -> State | None:
        """The state after the first step that is one of these happenings, or of one of these kinds."""
        for (_, step, _), found in self.successors(state):
            happening = None if step is None else step.happening
            if happening in wanted or type(happening) in wanted:
                return found
        return None

    # -- what can happen

    def successors(self, state: State) -> Found:
        """Every action, and the state after it. Raises Violation if a step breaks a rule."""
        scope, replicas, own = self.scope, self.replicas, self.replicas.own
        numbers, network = state[:SIZE], state[SIZE]
        found: Found = []
        for arrival in self.networks.arrivals(network):
            if state.losses < scope.losses:
                lost = state._replace(network=arrival.rest, losses=state.losses + 1)
                self._settle((arrival.to, None, arrival), lost, found)
            for step in replicas.delivered(numbers[arrival.to], arrival.number):
                self._take(state, arrival.to, step, arrival.rest, found)
        for position in range(SIZE):
            replica = numbers[position]
            for step in own[replica] or replicas.own_steps(replica):
                self._take(state, position, step, network, found)
            if state.appends < scope.appends and replicas.leads[replica]:
                more = state._replace(appends=state.appends + 1)
                for step in replicas.appended(replica, more.appends):
                    self._take(more, position, step, network, found)
            if state.crashes < scope.crashes:
                crashed = state._replace(crashes=state.crashes + 1)
                for step in replicas.crashed(replica):
                    self._take(crashed, position, step, network, found)
        return found

    def _take(self, state: State, position: int, step: Step, network: int, found: Found) -> None:
        """Add the states after a replica's step: several if not all that it sends finds room."""
        action: Action = (position, step, None)
        if step.violation is not None:
            raise PropertyViolation(state, action, step.violation)
        a, b, c, _, leaders, committed, appends, losses, crashes = state
        if position == 0:
            a = step.replica
        elif position == 1:
            b = step.replica
        else:
            c = step.replica
        if step.forgotten:
            a, b, c, network = self._forget((a, b, c), network, position, step.forgotten)
        if step.elected_in:
            leaders = self._elect(state, action, step)
        if step.committed:
            committed = self._commit(state, action, step)
        sent = step.sent[position]
        if sent:
            sent = self._without_empty((a, b, c), sent)
            networks = self.networks.join(network, sent)
        else:
            networks = (network,)
        replicas, tables = self.replicas, self.networks
        owed = replicas.owed[a][0] | replicas.owed[b][1] | replicas.owed[c][2]
        waiting = replicas.awaited[a][0] | replicas.awaited[b][1] | replicas.awaited[c][2]
        for network in networks:
            if tables.given_up[network]:
                network = self._without_void((a, b, c), network)
            new = State(a, b, c, network, leaders, committed, appends, losses, crashes)
            if waiting & ~(owed | tables.covered[network]):
                self._settle(action, new, found)
            else:
                found.append((action, new))

    def _settle(self, action: Action, state: State, found: Found) -> None:
        """A replica that waits for a response that cannot come any more gives up at once."""
        a, b, c = state[:SIZE]
        owed, awaited = self.replicas.owed, self.replicas.awaited
        waiting = awaited[a][0] | awaited[b][1] | awaited[c][2]
        reached = owed[a][0] | owed[b][1] | owed[c][2] | self.networks.covered[state.network]
        orphans = waiting & ~reached
        if not orphans:
            found.append((action, state))
            return
        position, slot = divmod((orphans & -orphans).bit_length() - 1, SLOTS)
        step = self.replicas.failed(state[position], slot)
        nexts: Found = []
        self._take(state, position, step, state.network, nexts)
        found += [(action, last) for _, last in nexts]

    def _forget(
        self, numbers: tuple[int, int, int], network: int, position: int, slots: tuple[int, ...]
    ) -> tuple[int, int, int, int]:
        """A replica has given requests up: their receivers need not respond."""
        changed = list(numbers)
        for slot in slots:
            place, kind = place_and_kind(slot)
            other = (position + place) % SIZE
            if self.replicas.owed[changed[other]][other] >> (SLOTS * position + slot) & 1:
                theirs = slot_of(mirrored(place), kind)
                changed[other] = self.replicas.given_up(changed[other], theirs)
            network = self.networks.forget(network, position, other, kind)
        return changed[0], changed[1], changed[2], network

    def _without_empty(self, numbers: tuple[int, int, int], sent: Flights) -> Flights:
        """Without responses that have no news: they arrive at once."""
        messages = self.networks.messages
        for flight in sent:
            number, sender = divmod(flight, SIZE)
            message = messages[number]
            if message.kind == BEGIN and message.is_response:
                to = (sender + message.to) % SIZE
                if self.replicas.is_empty(number, numbers[to]):
                    sent = tuple(other for other in sent if other != flight)
        return sent

    def _without_void(self, numbers: tuple[int, int, int], network: int) -> int:
        """Without requests that can change nothing any more."""
        for arrival in self.networks.given_up[network]:
            if self.replicas.is_void(arrival.number, numbers[arrival.to]):
                return self._without_void(numbers, arrival.rest)
        return network

    # -- what must hold

    def _elect(self, state: State, action: Action, step: Step) -> int:
        """One leader an epoch, and the latest one has everything that is committed."""
        position = action[0]
        shift = 2 * (step.elected_in - FIRST_EPOCH - 1)
        known = state.leaders >> shift & 3
        if known:
            names = f"{labels_at(known - 1).me} and {labels_at(position).me}"
            text = f"two leaders in epoch {step.elected_in}: {names}"
            raise PropertyViolation(state, action, text)
        committed = self.replicas.prefixes[state.committed]
        log = self.replicas.values[step.replica].log
        if state.leaders >> shift == 0 and log[: len(committed)] != committed:
            text = f"leader completeness: the log {log} of the new leader lacks of {committed}"
            raise PropertyViolation(state, action, text)
        return state.leaders | (position + 1) << shift

    def _commit(self, state: State, action: Action, step: Step) -> int:
        """One committed history, for ever and for all."""
        prefixes = self.replicas.prefixes
        known, said = prefixes[state.committed], prefixes[step.committed]
        short = min(len(known), len(said))
        if known[:short] != said[:short]:
            text = f"two committed histories: {known} and {said}"
            raise PropertyViolation(state, action, text)
        return step.committed if len(said) > len(known) else state.committed

    def check(self, action: Action, state: State) -> None:
        """Raise Violation if this state, which the action has led to, is impossible."""
        logs = self.replicas.logs
        key = (logs[state.a], logs[state.b], logs[state.c], state.committed)
        if key in self._fine:
            return
        values = [self.replicas.log_values[number] for number in key[:SIZE]]
        committed = self.replicas.prefixes[state.committed]
        text = check_logs([log for log, _ in values])
        text = text or check_disks([disk for _, disk in values], committed)
        if text is not None:
            raise PropertyViolation(state, action, text)
        self._fine.add(key)

    # -- keys

    def key(self, state: State) -> int:
        """One number for the six states that differ only in the ids of replicas.

        The low `BUDGET_BITS` say what has been lost and has crashed.
        """
        a, b, c, network, leaders, committed, appends, losses, crashes = state
        mirror = self.replicas.mirror
        x, y, z = mirror[a], mirror[b], mirror[c]
        views = ((a, b, c), (b, c, a), (c, a, b), (x, z, y), (z, y, x), (y, x, z))
        best = min(views)
        least = -1
        for turn in range(len(views)):
            if views[turn] == best:
                rest = (self.networks.turn(network, turn) if turn else network) << 8
                rest |= _turned_leaders(leaders, turn) if turn and leaders else leaders
                if least < 0 or rest < least:
                    least = rest
        a, b, c = best
        key = ((a << LOCAL_BITS | b) << LOCAL_BITS | c) << (NETWORK_BITS + 8) | least
        return ((key << 8 | committed) << 3 | appends) << BUDGET_BITS | losses << 2 | crashes

    def check_room(self) -> None:
        """Two states must never get one key."""
        assert len(self.replicas.values) < 1 << LOCAL_BITS, "too many states of a replica for a key"
        assert len(self.networks.values) < 1 << NETWORK_BITS, "too many networks for a key"
        assert len(self.replicas.prefixes) < 1 << 8, "too many committed prefixes for a key"

    def state(self, key: int) -> State:
        """A state of this key."""
        losses, crashes, key = key >> 2 & 7, key & 3, key >> BUDGET_BITS
        appends, committed, leaders, key = key & 7, key >> 3 & 255, key >> 11 & 255, key >> 19
        network, key = key & ((1 << NETWORK_BITS) - 1), key >> NETWORK_BITS
        mask = (1 << LOCAL_BITS) - 1
        a, b, c = key >> 2 * LOCAL_BITS, key >> LOCAL_BITS & mask, key & mask
        return State(a, b, c, network, leaders, committed, appends, losses, crashes)


def _turned_leaders(leaders: int, turn: int) -> int:
    found, shift = 0, 0
    while leaders >> shift:
        position = (leaders >> shift & 3) - 1
        if position >= 0:
            found |= (turned_position(position, turn) + 1) << shift
        shift += 2
    return found
