"""State of a replica that starts, made from the state on disk.

Sources: KIP-595, persistent state; KIP-856, disk failures and quorum.voters.
"""

from __future__ import annotations

from quorumd.raft.core import Core
from quorumd.raft.roles import Follower, Resigned, Unattached
from quorumd.raft.types import VoterSet


def halt_reason(core: Core) -> str | None:
    """The reason why this replica must not take part; None if it may.

    Its log ends below the committed offset that is recorded, is of another cluster, names voters that
    quorum.voters does not, or makes a voter of a Kafka quorum of a node that is no witness.
    """
    if core.recorded_offset > core.log.end_offset:
        return (
            f"the log ends at offset {core.log.end_offset}, but everything below "
            f"{core.recorded_offset} was stored here and committed: this disk lost records that "
            "other replicas rely on. Restore the log directory, or format it anew so that it joins "
            "as a new replica with another storage id."
        )
    logged = core.committed_voters.record.cluster_id
    if None not in (core.cluster_id, logged) and core.cluster_id != logged:
        return (
            f"the log is of cluster {logged}, but meta.properties says {core.cluster_id}. Correct cluster.id "
            "there, or storage.dir if this is another node's directory."
        )
    if is_voter_by_mistake(core):
        return (
            f"replica {core.local.id}, this one, votes in the Kafka quorum, but quorum.witness is off: it "
            "would acknowledge records, and never hand those over that it alone has. Set quorum.witness: "
            "true. To have an observer instead, remove the voter with quorumctl remove-voter while it runs "
            "so, and then set it to false."
        )
    unexpected = unexpected_voters(core, core.committed_voters.record.voters)
    if unexpected:
        named = ", ".join(map(str, unexpected))
        return (
            f"the log says that replica {named} votes, which quorum.voters does not name (KIP-856). "
            "Remove quorum.voters from the configuration of all nodes, and set "
            "quorum.bootstrap.servers: the log knows the voters by now. Or add the id there."
        )
    return None


def is_voter_by_mistake(core: Core) -> bool:
    """True if a Kafka quorum counts on this replica, which is not configured as its witness."""
    return core.config.is_kafka_log and core.electorate.has_local and not core.config.is_witness


def unexpected_voters(core: Core, voters: VoterSet) -> tuple[int, ...]:
    """Ids that vote although quorum.voters is there and does not name them.

    None beside Kafka: its nodes take voters from the log alone as soon as it names any (kraft.version 1).
    """
    if core.config.is_kafka_log:
        return ()
    permitted = core.config.configured_voters.ids
    return tuple(voter for voter in voters.ids if permitted and voter not in permitted)


def restore_role(core: Core) -> None:
    """Take up the role that the stored epoch, leader and vote imply.

    A stored vote for this replica makes it neither candidate nor leader again: its votes are lost
    with the process, and a new campaign is safe in any case.
    """
    if core.epoch < core.log.last_epoch:
        core.epoch, core.leader, core.voted = core.log.last_epoch, None, None
    if core.leader is not None and core.is_local(core.leader):
        core.leader = core.local if core.is_voter else None
    timeout = core.random_election_timeout_ms()
    if core.leader == core.local:
        others = set(core.other_voters())
        core.state = Resigned(core.now_ms + timeout if others else core.now_ms, others, ())
    elif core.is_voter:
        if core.leader is not None and core.endpoints_of(core.leader):
            core.state = Follower(core.now_ms + core.config.fetch_timeout_ms)
        else:
            core.leader = None
            core.state = Unattached(core.now_ms + (timeout if core.other_voters() else 0))
    if core.leader is not None:
        core.known_leader.endpoints = core.endpoints_of(core.leader)
        if core.leader != core.local:
            core.known_leader.expected_until_ms = core.now_ms + core.config.fetch_timeout_ms
    core.context = (core.epoch, core.leader)
    core.persist()
    core.announce("started")
