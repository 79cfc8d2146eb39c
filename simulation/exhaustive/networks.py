"""The messages in flight, as numbers, and what becomes of them.

A message in flight is 3 x its number + the position of its sender; a network is a sorted tuple of these.
"""

from __future__ import annotations

from itertools import combinations
from typing import NamedTuple

from simulation.exhaustive.labels import SIZE, mirrored
from simulation.exhaustive.messages import (
    SLOTS,
    Message,
    mirrored_message,
    slot_of,
)

Flight = int
Network = int
TURNS = 2 * SIZE
"""Ways to name the positions of the circle: from three of them, in both directions."""


class Arrival(NamedTuple):
    """One message of a network: its receiver's position, and the network without it."""

    flight: Flight
    number: int
    to: int
    rest: Network


class Networks:
    """Numbers messages and networks as they turn up. At most `limit` messages are in flight."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.messages: list[Message] = []
        self._message_numbers: dict[Message, int] = {}
        self.values: list[tuple[Flight, ...]] = []
        self._numbers: dict[tuple[Flight, ...], Network] = {}
        self.covered: list[int] = []
        """The requests that a network carries or responds to: a bit for each slot of each position."""
        self.given_up: list[tuple[Arrival, ...]] = []
        """Requests in a network whose sender does not wait."""
        self._arrivals: dict[Network, tuple[Arrival, ...]] = {}
        self._joined: dict[tuple[Network, tuple[Flight, ...]], tuple[Network, ...]] = {}
        self._turned: list[dict[Network, Network]] = [{} for _ in range(TURNS)]
        self.number(())

    def message_number(self, message: Message) -> int:
        """Messages that mirror one another are numbered one after the other, the first one even."""
        number = self._message_numbers.get(message)
        if number is None:
            for value in (message, mirrored_message(message)):
                self._message_numbers[value] = len(self.messages)
                self.messages.append(value)
            number = self._message_numbers[message]
        return number

    def number(self, flights: tuple[Flight, ...]) -> Network:
        """The number of the network of these messages; they are sorted."""
        number = self._numbers.get(flights)
        if number is None:
            number = self._numbers[flights] = len(self.values)
            self.values.append(flights)
            self.covered.append(self._cover(flights))
            self.given_up.append(())
            self.given_up[number] = tuple(
                arrival
                for arrival in self._all_arrivals(flights)
                if not self.messages[arrival.number].is_wanted
            )
        return number

    def _cover(self, flights: tuple[Flight, ...]) -> int:
        covered = 0
        for flight in flights:
            number, sender = divmod(flight, SIZE)
            message = self.messages[number]
            if not message.is_wanted:
                continue
            asker, place = sender, message.to
            if message.is_response:
                asker, place = (sender + message.to) % SIZE, mirrored(message.to)
            covered |= 1 << (SLOTS * asker + slot_of(place, message.kind))
        return covered

    def arrivals(self, network: Network) -> tuple[Arrival, ...]:
        """Every message, once."""
        found = self._arrivals.get(network)
        if found is None:
            found = self._arrivals[network] = self._all_arrivals(self.values[network])
        return found

    def _all_arrivals(self, flights: tuple[Flight, ...]) -> tuple[Arrival, ...]:
        found = []
        for at, flight in enumerate(flights):
            if at == 0 or flights[at - 1] != flight:
                number, sender = divmod(flight, SIZE)
                to = (sender + self.messages[number].to) % SIZE
                rest = self.number(flights[:at] + flights[at + 1 :])
                found.append(Arrival(flight, number, to, rest))
        return tuple(found)

    def join(self, network: Network, sent: tuple[Flight, ...]) -> tuple[Network, ...]:
        """Possible networks after these are sent at once: if not all find room, any of them do."""
        key = (network, sent)
        found = self._joined.get(key)
        if found is None:
            before = self.values[network]
            room = max(0, min(len(sent), self.limit - len(before)))
            chosen = {tuple(sorted(before + some)) for some in combinations(sent, room)}
            found = self._joined[key] = tuple(self.number(flights) for flights in sorted(chosen))
        return found

    def forget(self, network: Network, asker: int, other: int, kind: int) -> Network:
        """`asker` gives a request to `other` up: a response vanishes, the request itself does not."""
        found = []
        for flight in self.values[network]:
            number, sender = divmod(flight, SIZE)
            message = self.messages[number]
            to = (sender + message.to) % SIZE
            if message.kind == kind and message.is_wanted:
                if message.is_response and (sender, to) == (other, asker):
                    continue
                if not message.is_response and (sender, to) == (asker, other):
                    flight = SIZE * self.message_number(message._replace(is_wanted=False)) + sender
            found.append(flight)
        return self.number(tuple(sorted(found)))

    def turn(self, network: Network, turn: int) -> Network:
        """The same messages under one of the six namings of the positions; 0 changes nothing."""
        known = self._turned[turn]
        found = known.get(network)
        if found is None:
            flights = []
            for flight in self.values[network]:
                number, sender = divmod(flight, SIZE)
                if turn >= SIZE:
                    number ^= 1
                flights.append(number * SIZE + turned_position(sender, turn))
            found = known[network] = self.number(tuple(sorted(flights)))
        return found


def turned_position(position: int, turn: int) -> int:
    """The position after a turn."""
    if turn >= SIZE:
        position = mirrored(position)
    return (position - turn) % SIZE
