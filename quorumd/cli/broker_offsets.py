"""Offsets up to which running Kafka brokers have applied the metadata log: ApiVersions of each says so.

A broker ends that meets a leader whose log parts from its own below there. Source: KIP-584, finalized
features epoch; Apache Kafka 4.3, KRaftMetadataCache.features: the offset of the newest record in its image.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING, NamedTuple

from quorumd.client.connector import Connector
from quorumd.client.errors import QuorumError
from quorumd.client.leader import cluster_id_of
from quorumd.version import VERSION
from quorumd.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse

if TYPE_CHECKING:
    from quorumd.client.security import Security
    from quorumd.raft.types import Address


class BrokerOffset(NamedTuple):
    """The end (exclusive) of what a broker has applied; None and the reason if it did not say."""

    address: Address
    end_offset: int | None
    reason: str = ""


async def ask_brokers(
    addresses: Sequence[Address], cluster_id: str, security: Security | None, timeout_s: float
) -> list[BrokerOffset]:
    """All at the same time, each at the address that is named; those of another cluster say nothing."""
    with closing(Connector("quorumctl", security)) as connector:
        asked = [_ask(connector, address, cluster_id, timeout_s) for address in addresses]
        return list(await asyncio.gather(*asked))


async def _ask(
    connector: Connector, address: Address, cluster_id: str, timeout_s: float
) -> BrokerOffset:
    request = ApiVersionsRequest(client_software_name="quorumctl", client_software_version=VERSION)
    try:
        with closing(await connector.connect(address, timeout_s)) as connection:
            its_cluster = await cluster_id_of(connection, timeout_s)
            response = await connection.request(request, ApiVersionsResponse, timeout_s=timeout_s)
    except QuorumError as error:
        return BrokerOffset(address, None, str(error))
    if its_cluster != cluster_id:
        reason = f"it belongs to another cluster, {its_cluster}"
        return BrokerOffset(
            address, None, reason if its_cluster else "it does not name its cluster"
        )
    if response.finalized_features_epoch < 0:
        return BrokerOffset(address, None, "it does not say how far it is")
    return BrokerOffset(address, response.finalized_features_epoch + 1)
