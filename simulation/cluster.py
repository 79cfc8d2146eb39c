"""All machines of a run, the network between them, and what watches them."""

from __future__ import annotations

from random import Random

from quorumd.raft.roles import Role
from quorumd.raft.types import ReplicaKey, Voter
from quorumd.server.admin.initial_voters import render_initial_voters
from quorumd.storage.meta_properties import random_storage_id
from simulation.coverage import Coverage
from simulation.history.facts import Facts
from simulation.machines.address_map import AddressMap
from simulation.machines.environment import Environment
from simulation.machines.machine import FirstVoter, Machine
from simulation.machines.network import Network
from simulation.machines.node_process import NodeProcess
from simulation.observer import Observer
from simulation.scheduler import Scheduler
from simulation.settings import Settings, listener_at
from simulation.trace import Trace


class Cluster:
    """See the module's docstring. No machine runs yet."""

    def __init__(self, seed: int, settings: Settings) -> None:
        scheduler, coverage, facts = Scheduler(), Coverage(), Facts()
        trace = Trace(scheduler)
        random = Random(f"{seed}/network")
        network = Network(scheduler, random, coverage, self.role_of, self.deadline_of, trace.note)
        observer = Observer(scheduler, trace, facts)
        self.env = Environment(seed, settings, scheduler, network, trace, coverage, facts, observer)
        self.address_map = AddressMap(facts)
        self.machines = self._format_machines(settings)
        for machine in self.machines:
            self.address_map.add(machine)
        self._by_host = {machine.host: machine for machine in self.machines}
        self.hosts = [machine.host for machine in self.machines]

    def _format_machines(self, settings: Settings) -> list[Machine]:
        """As an operator does it: by configuration, or each with the ids of all disks."""
        env = self.env
        first = {site: FirstVoter() for site in settings.sites if site.is_first_voter}
        if settings.is_dynamic:
            draw = Random(f"{env.seed}/first voters").randrange
            ids = {site: random_storage_id(draw) for site in first}
            text = render_initial_voters(
                Voter(ReplicaKey(site.node_id, ids[site]), (listener_at(site.host),))
                for site in first
            )
            first = {site: FirstVoter(ids[site], text) for site in first}
        machines = [
            Machine(
                env,
                self.address_map,
                site.host,
                settings.config_of(site),
                Random(f"{env.seed}/node/{site.host.removeprefix('node')}"),
                first.get(site),
            )
            for site in settings.sites
        ]
        env.facts.voters.first = tuple(
            machine.replica.key
            for machine, site in zip(machines, settings.sites, strict=True)
            if site.is_first_voter
        )
        return machines

    def add_machine(self, machine: Machine) -> None:
        """One that no address leads to."""
        self._by_host[machine.host] = machine

    def process_at(self, host: str) -> NodeProcess | None:
        """Process that runs on a machine now."""
        return self._by_host[host].process

    def role_of(self, host: str) -> str:
        """The role of a machine's node, `down` or `client`."""
        machine = self._by_host.get(host)
        return "client" if machine is None else machine.role

    def deadline_of(self, host: str) -> int | None:
        """When a rule of a machine's node is due next, µs."""
        machine = self._by_host.get(host)
        return None if machine is None else machine.next_deadline_us()

    def host_of(self, node_id: int) -> str | None:
        """The machine of a node; of two with the same id the one that leads."""
        leader = self.leader_machine()
        if leader is not None and leader.id == node_id:
            return leader.host
        return next((m.host for m in self.machines if m.id == node_id), None)

    def leader_machine(self) -> Machine | None:
        """The machine whose process leads the highest epoch, if any."""
        leading = [
            machine
            for machine in self.machines
            if machine.process is not None and machine.process.node.role is Role.LEADER
        ]
        return max(leading, key=lambda m: m.process.node.epoch if m.process else -1, default=None)

    def is_voter(self, machine: Machine) -> bool:
        """True if its replica votes by the set that was committed last."""
        return machine.replica.key in self.env.facts.voters.current
