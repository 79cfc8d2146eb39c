"""An unauthenticated client sends raft requests with false contents, and gets the responses or not.

It knows what any client can learn: the cluster id, epoch and leader, and every replica's key. What it says
of the present epoch's log is left out: without authentication it looks like an acknowledgement.
"""

from __future__ import annotations

from functools import partial
from random import Random
from typing import NamedTuple

from quorumd.raft.events import TimerFired
from quorumd.raft.node import RaftNode
from quorumd.raft.types import ReplicaKey
from quorumd.server.translate.common import uuid_or_zero
from quorumd.wire.codec import encode
from quorumd.wire.headers import encode_request_header
from quorumd.wire.messages.begin_quorum_epoch import (
    BeginQuorumEpochRequest,
    BeginQuorumEpochRequestLeaderEndpoint,
    BeginQuorumEpochRequestPartition,
    BeginQuorumEpochRequestTopic,
)
from quorumd.wire.messages.end_quorum_epoch import (
    EndQuorumEpochRequest,
    EndQuorumEpochRequestPartition,
    EndQuorumEpochRequestPreferredCandidate,
    EndQuorumEpochRequestTopic,
)
from quorumd.wire.messages.fetch import (
    FetchRequest,
    FetchRequestPartition,
    FetchRequestReplicaState,
    FetchRequestTopic,
)
from quorumd.wire.messages.vote import VoteRequest, VoteRequestPartition, VoteRequestTopic
from quorumd.wire.metadata_topic import TOPIC, TOPIC_ID
from quorumd.wire.registry import APIS
from quorumd.wire.schema import Message
from simulation.faults.chaos import Chaos, span_us
from simulation.faults.registry import Faults
from simulation.machines.channel import Channel
from simulation.machines.machine import Machine
from simulation.machines.network import NetworkMessage
from simulation.machines.node_process import NodeProcess
from simulation.scheduler import MS
from simulation.settings import PORT
from simulation.violation import Violation

FAULTS = Faults()
HOSTILE = "hostile frames"
FETCH, VOTE, BEGIN, END = 1, 52, 53, 54
VERSIONS = {FETCH: 17, VOTE: 2, BEGIN: 1, END: 1}
HUGE_EPOCH = 1_162_891_075
STRANGER = 4711


class Forged(NamedTuple):
    """A request, and the epoch that it names."""

    api_key: int
    epoch: int
    message: Message


@FAULTS.fault(HOSTILE)
def hostile_frames(chaos: Chaos, random: Random) -> None:
    """For a while, at any node, at any moment."""
    pause_us = random.choice([1 * MS, 5 * MS, 30 * MS])
    until_us = chaos.scheduler.now_us + span_us(random)

    def go_on() -> None:
        send_forged(chaos, random, random.choice(chaos.machines))
        if chaos.scheduler.now_us < until_us:
            chaos.later(random.randrange(2 * pause_us), go_on)

    go_on()


def send_forged(chaos: Chaos, random: Random, target: Machine) -> None:
    """One request of any kind, made from what any client can learn of its target."""
    process = target.process
    if process is None:
        return
    keys = [machine.replica.key for machine in chaos.machines]
    hosts = [machine.address for machine in chaos.machines]
    forged = forge(process.node, keys, hosts, random)
    header = encode_request_header(forged.api_key, VERSIONS[forged.api_key], 1, "hostile")
    body = encode(forged.message, VERSIONS[forged.api_key])
    frame = (len(header) + len(body)).to_bytes(4, "big") + header + body
    kind = f"forged {APIS[forged.api_key].name}"
    target.count(HOSTILE)
    chaos.network.send(
        NetworkMessage("hostile", target.host, kind, frame),
        lambda data: _arrive(target, forged, kind, data),
        lambda: None,
    )


def _arrive(target: Machine, forged: Forged, kind: str, data: bytes) -> None:
    process = target.process
    if process is not None:
        process.run(partial(_judge, process, forged, kind, data))


def _judge(process: NodeProcess, forged: Forged, kind: str, data: bytes) -> None:
    """A replica with a leader, or that leads, is as it was before. Raises Violation.

    One without may take the next epochs from a Vote: it cannot ask first, if an election is to be fast.
    """
    node, facts = process.node, process.env.facts
    if forged.api_key == FETCH and forged.epoch <= node.epoch:
        return  # it was long under way: what it says is of the present epoch by now
    process.partition.driver.handle(TimerFired())  # what time has done is no frame's doing
    is_led = node.is_leader or node.core.is_led
    before = node.core.capture()
    if not is_led and forged.api_key == VOTE:
        facts.forged_epochs.add(forged.epoch)
    channel = Channel(process.listener, "hostile", "simulated-client")
    process.receive(data, channel, kind, lambda response: None, lambda: None)
    if not is_led or not process.is_alive:
        return
    after = node.core.capture()
    if after != before or not (node.is_leader or node.core.is_led):
        what = f"{kind} of epoch {forged.epoch} made of {before} {after}"
        raise Violation("no forged frame moves a replica that is led", what)


def forge(node: RaftNode, keys: list[ReplicaKey], hosts: list[str], random: Random) -> Forged:
    """A forged message that this node could believe."""
    api_key = random.choice([FETCH, VOTE, VOTE, BEGIN, END])
    step = random.choice([0, 0, 1, 1, 2, 100, 2_000])
    epoch = random.choice([node.epoch + step, node.epoch + step, HUGE_EPOCH])
    cluster_id = random.choice([None, node.cluster_id])
    key = random.choice([*keys, *keys, ReplicaKey(STRANGER), node.leader or ReplicaKey(STRANGER)])
    if api_key == FETCH:
        epoch = max(epoch, node.epoch + 1)
        return Forged(api_key, epoch, _fetch(epoch, key, cluster_id))
    if api_key == VOTE:
        return Forged(api_key, epoch, _vote(epoch, key, cluster_id, random))
    if api_key == BEGIN:
        at = BeginQuorumEpochRequestLeaderEndpoint(
            name="CONTROLLER", host=random.choice(hosts), port=PORT
        )
        begun = BeginQuorumEpochRequestPartition(leader_id=key.id, leader_epoch=epoch)
        begin = BeginQuorumEpochRequest(
            cluster_id=cluster_id,
            topics=(BeginQuorumEpochRequestTopic(topic_name=TOPIC, partitions=(begun,)),),
            leader_endpoints=random.choice([(), (at,)]),
        )
        return Forged(api_key, epoch, begin)
    return Forged(api_key, epoch, _end(epoch, key, cluster_id, random.sample(keys, len(keys))))


def _vote(epoch: int, key: ReplicaKey, cluster_id: str | None, random: Random) -> VoteRequest:
    asked = VoteRequestPartition(
        replica_epoch=epoch,
        replica_id=key.id,
        replica_directory_id=uuid_or_zero(key.uuid),
        last_offset_epoch=max(0, epoch - 1),
        last_offset=random.choice([0, 10**12]),
        pre_vote=random.random() < 0.3,
    )
    topic = VoteRequestTopic(topic_name=TOPIC, partitions=(asked,))
    return VoteRequest(cluster_id=cluster_id, topics=(topic,))


def _fetch(epoch: int, key: ReplicaKey, cluster_id: str | None) -> FetchRequest:
    asked = FetchRequestPartition(
        partition=0,
        current_leader_epoch=epoch,
        fetch_offset=0,
        last_fetched_epoch=0,
        partition_max_bytes=0,
        replica_directory_id=uuid_or_zero(key.uuid),
    )
    return FetchRequest(
        cluster_id=cluster_id,
        replica_state=FetchRequestReplicaState(replica_id=key.id),
        max_wait_ms=0,
        topics=(FetchRequestTopic(topic_id=TOPIC_ID, partitions=(asked,)),),
    )


def _end(
    epoch: int, key: ReplicaKey, cluster_id: str | None, heirs: list[ReplicaKey]
) -> EndQuorumEpochRequest:
    ended = EndQuorumEpochRequestPartition(
        leader_id=key.id,
        leader_epoch=epoch,
        preferred_candidates=tuple(
            EndQuorumEpochRequestPreferredCandidate(
                candidate_id=heir.id, candidate_directory_id=uuid_or_zero(heir.uuid)
            )
            for heir in heirs
        ),
    )
    topic = EndQuorumEpochRequestTopic(topic_name=TOPIC, partitions=(ended,))
    return EndQuorumEpochRequest(cluster_id=cluster_id, topics=(topic,))
