"""Malformed requests of every API, at a leader and a follower: each is answered, or closes its connection."""

from __future__ import annotations

import random
import struct

import pytest

from quorumd.wire.codec import encode
from quorumd.wire.messages.add_raft_voter import AddRaftVoterRequest
from quorumd.wire.messages.alter_partition_reassignments import AlterPartitionReassignmentsRequest
from quorumd.wire.messages.remove_raft_voter import RemoveRaftVoterRequest
from quorumd.wire.messages.transfer_leader import TransferLeaderRequest
from quorumd.wire.messages.update_raft_voter import UpdateRaftVoterRequest
from quorumd.wire.registry import APIS
from quorumd.wire.schema import Message
from tests.support.live_cluster import Cluster
from tests.support.raw_client import Hungup, RawClient, frame

pytestmark = pytest.mark.usefixtures("harmless")

SEED = 20_261_123
CHANGES: tuple[Message, ...] = (
    AddRaftVoterRequest(cluster_id="another"),
    RemoveRaftVoterRequest(cluster_id="another"),
    UpdateRaftVoterRequest(cluster_id="another"),
    AlterPartitionReassignmentsRequest(),
    TransferLeaderRequest(cluster_id="another"),
)


def is_answered_or_closed(port: int, key: int, version: int, body: bytes) -> bool:
    """Within the client's five seconds."""
    is_flexible = version >= APIS[key].flexible_from
    head = struct.pack(">hhih", key, version, 1, -1) + (b"\0" if is_flexible else b"")
    with RawClient(port) as client:
        client.send(frame(head + body))
        try:
            client.read_frame()
        except TimeoutError:
            return False
        except Hungup:
            pass
        return True


def bodies(rng: random.Random) -> list[bytes]:
    return [b"", b"\0", b"\xff" * 40, *(rng.randbytes(size) for size in (3, 20, 400))]


@pytest.mark.parametrize("of_leader", [True, False], ids=["leader", "follower"])
def test_each_is_answered_or_its_connection_closed(quorum: Cluster, *, of_leader: bool) -> None:
    leader = quorum.wait_leader()
    node = leader if of_leader else next(node for node in quorum.ids if node != leader)
    rng = random.Random(SEED)
    begun = len(quorum.output(node))
    silent = [
        f"{spec.name} {version}: {body.hex()}"
        for spec in APIS.values()
        for version in {spec.min_version, spec.max_version}
        for body in bodies(rng)
        if not is_answered_or_closed(quorum.port(node), spec.key, version, body)
    ]
    assert silent == []
    assert "ERROR" not in quorum.output(node)[begun:]


@pytest.mark.parametrize("message", CHANGES, ids=lambda message: type(message).__name__)
@pytest.mark.parametrize("of_leader", [True, False], ids=["leader", "follower"])
def test_a_change_cut_anywhere_is_answered_or_its_connection_closed(
    quorum: Cluster, message: Message, *, of_leader: bool
) -> None:
    leader = quorum.wait_leader()
    node = leader if of_leader else next(node for node in quorum.ids if node != leader)
    key = message.wire_spec.api_key
    assert key is not None
    version = APIS[key].max_version
    whole = encode(message, version)
    begun = len(quorum.output(node))
    silent = [
        size
        for size in range(len(whole))
        if not is_answered_or_closed(quorum.port(node), key, version, whole[:size])
    ]
    assert silent == []
    assert "ERROR" not in quorum.output(node)[begun:]
