"""The first voters of a new quorum, from the options with which an operator formats a node."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from quorumd.config.errors import BadValue
from quorumd.config.model import Config
from quorumd.raft.types import ReplicaKey, Voter
from quorumd.server.admin.initial_voters import parse_initial_voters, render_initial_voters
from quorumd.storage.meta_properties import random_storage_id


class FormatRefused(ValueError):
    """The message says why a directory must not be formatted like this, and what to do instead."""


@dataclass(frozen=True, slots=True)
class FirstVoters:
    """`text` is initial.voters of meta.properties, empty if quorum.voters names them.

    `storage_id` is what this node has to have, None if any will do. `is_new` is False for a node that
    joins a quorum that exists.
    """

    is_new: bool = False
    text: str = ""
    storage_id: UUID | None = None


def first_voters(
    config: Config, bootstrap: bool, standalone: bool, initial_voters: str | None
) -> FirstVoters:
    """At most one of the last three is given. Raises FormatRefused."""
    voters = {voter.id for voter in config.quorum_voters}
    if bootstrap and not voters:
        raise FormatRefused(
            "quorum.voters is not set: say who the first voters of the new quorum are by --standalone, for "
            "this node alone, or by --initial-voters."
        )
    if bootstrap and config.node_id not in voters:
        raise FormatRefused(
            f"--bootstrap is for the first voters, but node.id {config.node_id} is not in "
            "quorum.voters. Add it there, or leave --bootstrap out to join as an observer."
        )
    if voters and (standalone or initial_voters is not None):
        raise FormatRefused(
            "quorum.voters names the voters already: give --bootstrap, or remove that key and set "
            "quorum.bootstrap.servers instead."
        )
    if standalone:
        at = config.advertised_listeners[0]
        key = ReplicaKey(config.node_id, random_storage_id())
        text = render_initial_voters([Voter(key, (at,))])
        return FirstVoters(True, text, key.uuid)
    if initial_voters is not None:
        return _listed(config, initial_voters)
    return FirstVoters(is_new=bootstrap)


def check_kafka_log(config: Config, cluster_id: str | None, *, is_new: bool) -> None:
    """A directory for the log of a real Kafka quorum. Raises FormatRefused if it must not be one.

    `is_new` says that first voters are named, too. A node under the id of a Kafka controller would end
    that controller: Kafka identifies nodes by id alone. The id of a witness is in quorum.voters where
    controller.quorum.voters names it.
    """
    if is_new:
        raise FormatRefused(
            "--kafka-log joins a Kafka quorum that exists: leave --bootstrap, --standalone and "
            "--initial-voters out."
        )
    if cluster_id is None:
        raise FormatRefused(
            "--kafka-log needs --cluster-id: the log of a Kafka quorum does not name its cluster. "
            "`quorumctl describe --status --bootstrap-server HOST:PORT` of a controller prints it."
        )
    if config.quorum_witness:
        return
    if any(voter.id == config.node_id for voter in config.quorum_voters):
        raise FormatRefused(
            f"node.id {config.node_id} is that of a voter in quorum.voters: a Kafka controller must be "
            "the only node under its id. Choose an id that no controller and no broker has."
        )


def _listed(config: Config, text: str) -> FirstVoters:
    try:
        voters = parse_initial_voters(text, config.advertised_listeners[0].name)
    except BadValue as error:
        raise FormatRefused(f"--initial-voters: {error}.") from error
    own = voters.find(ReplicaKey(config.node_id))
    if own is None:
        raise FormatRefused(
            f"node.id {config.node_id} is not in --initial-voters. Add it there, or leave that option "
            "out to join the quorum as an observer."
        )
    return FirstVoters(True, render_initial_voters(voters), own.key.uuid)
