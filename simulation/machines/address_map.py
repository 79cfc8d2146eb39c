"""Under which name each machine is reached, now that nodes may move."""

from __future__ import annotations

from quorumd.raft.types import Endpoint, ReplicaKey
from simulation.history.facts import Facts
from simulation.machines.machine import Machine
from simulation.machines.process import Process
from simulation.settings import listener_at, moved


class AddressMap:
    """See the module's docstring. Links find their peers here."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._by_address: dict[str, Machine] = {}

    def add(self, machine: Machine) -> None:
        """Adds a machine at the address of its configuration."""
        self._by_address[machine.address] = machine

    def host_at(self, address: str) -> str:
        """The machine that is, or was, reached under this name."""
        machine = self._by_address.get(address) or self._by_address.get(moved(address))
        return address if machine is None else machine.host

    def listening_at(self, address: str) -> Process | None:
        machine = self._by_address.get(address)
        return None if machine is None else machine.process

    def listeners_of(self, key: ReplicaKey) -> tuple[Endpoint, ...]:
        """Endpoints of a replica; `nowhere` if its disk is no more."""
        found = (m.config.listeners for m in self._by_address.values() if m.replica.key == key)
        return next(found, (listener_at("nowhere"),))

    def move(self, machine: Machine) -> None:
        """Gives a machine another address, at which it listens when it comes back."""
        del self._by_address[machine.address]
        machine.move(moved(machine.address))
        self._by_address[machine.address] = machine

    def is_misplaced(self, machine: Machine) -> bool:
        """True if it votes, and is reached elsewhere than the committed voter set says."""
        committed = self._facts.voters.committed
        if not committed:
            return True
        voter = committed[-1].record.voters.find(machine.replica.key)
        return voter is not None and voter.endpoints[0].host != machine.address
