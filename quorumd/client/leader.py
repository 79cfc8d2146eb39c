"""Finding the leader and staying with it: bootstrap addresses, hints in responses, retries.

Owns the open connections. Asks nodes for the leader, and knows no other request. All addresses are asked
at once, so that a silent node causes no delay.
Source: KIP-595 (leader hints), KIP-951 (NodeEndpoints), KIP-919 (DescribeCluster on controllers).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from quorumd.client.connection import ClientConnection
from quorumd.client.connector import Connector
from quorumd.client.error_messages import LEADER_MOVED, RETRIABLE, explain
from quorumd.client.errors import (
    ClientClosed,
    ConnectionFailed,
    NotSupported,
    OtherCluster,
    QuorumError,
    QuorumUnavailable,
    RequestRefused,
    ResponseOverdue,
    error_code,
)
from quorumd.client.security import Security
from quorumd.client.timing import Deadline, RetryBackoff
from quorumd.raft.types import Address
from quorumd.security.errors import CertificateProblem
from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from quorumd.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from quorumd.wire.metadata_topic import TOPIC

CONNECT_TIMEOUT_S = 3.0
ENDPOINT_TYPE_CONTROLLERS = 2
# A leader that has just failed may still be named by nodes that haven't noticed: others get this
# long to name a newer one.
_NEWER_LEADER_WAIT_S = 0.3
# So long a leader whose certificate is refused, or that refuses the client's, is tried again: files are being
# renewed, or the other nodes refuse it, too, and elect another (quorum.fetch.timeout.ms is 2 s by default).
_BARRED_S = 4.0
# A try that had less time than this fails because the time is up; an earlier reason says more.
_CONCLUSIVE_TIMEOUT_S = 0.25

T = TypeVar("T")


class RetriableError(Exception):
    """Raised by an action at the leader: it failed for this reason, and a retry may succeed.

    `hint` is the address of the leader if the response named it; with `stay` the same node is asked
    again.
    """

    def __init__(self, reason: str, *, hint: Address | None = None, stay: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.hint = hint
        self.stay = stay


class LeaderReply(NamedTuple):
    """The leader and epoch (-1: not in the response) that a node named, and all nodes that it knows.

    `cluster_id` is None or empty as long as the node does not know it.
    """

    address: Address | None
    epoch: int
    nodes: tuple[Address, ...]
    cluster_id: str | None = None


@dataclass(slots=True)
class KnownCluster:
    """The cluster that a client works with: the first one that a node has named."""

    id: str | None = None

    def check(self, found: str | None) -> None:
        """Raises OtherCluster for a node that belongs to another one."""
        if self.id and found and found != self.id:
            raise OtherCluster(self.id, found)
        self.id = self.id or found


class LeaderFinder:
    """Finds the leader of one quorum from bootstrap addresses, and keeps connections to its nodes.

    Takes no node of another cluster than it has found first; finders may share what they know of that.
    """

    def __init__(
        self,
        bootstrap: Sequence[Address],
        *,
        client_id: str,
        security: Security | None = None,
    ) -> None:
        self.failures: dict[Address, str] = {}
        self.cluster = KnownCluster()
        self.connector = Connector(client_id, security)
        """Makes other connections of the same client."""
        self._bootstrap = tuple(bootstrap)
        self._learnt: tuple[Address, ...] = ()
        self._connections: dict[Address, ClientConnection] = {}
        self._asked: set[Address] = set()
        """Servers whose connection was asked who leads, and leads to a node of the cluster."""
        self._leader: Address | None = None
        self._epoch = -1
        self._failed: tuple[Address, int] | None = None
        self._unfit: dict[Address, QuorumError | CertificateProblem] = {}
        self._closed_s = float("-inf")

    async def at_leader(
        self, goal: str, deadline: Deadline, action: Callable[[ClientConnection], Awaitable[T]]
    ) -> T:
        """Runs `action` at the leader, again if it raises RetriableError or ConnectionFailed.

        `goal` completes "could not ...". Raises QuorumUnavailable when the time is up.
        """
        backoff = RetryBackoff()
        while True:
            connection = await self.connection(goal, deadline)
            try:
                return await action(connection)
            except ConnectionFailed as error:
                self.find_again(connection.address, error)
            except RetriableError as error:
                self.retry_later(connection.address, error)
            await self.pause(goal, deadline, backoff)

    async def connection(self, goal: str, deadline: Deadline) -> ClientConnection:
        """An open connection to the leader.

        Raises QuorumUnavailable when the time is up, and at once NotSupported, OtherCluster, RequestRefused
        or CertificateProblem if no server will do, and ClientClosed. Soon CertificateProblem, too, if it is
        the leader alone that will not do, and stays that.
        """
        backoff = RetryBackoff()
        barred = _Barred()
        while True:
            if self._was_closed_since(deadline):
                raise ClientClosed
            address = self._leader or await self._find(deadline)
            if address is not None:
                timeout_s = deadline.remaining_s()
                try:
                    connection = await self._connect(address, deadline)
                except ConnectionFailed as error:
                    self.forget(address, self._reason(address, error, timeout_s))
                    barred.note(address, error.problem)
                else:
                    # A connection that is made anew may lead to another cluster.
                    if address in self._asked or await self._ask(address, deadline):
                        self._leader = address
                        return connection
                    self.forget(address, self.failures[address])
            else:
                barred.note(None, None)
            await self.pause(goal, deadline, backoff)

    async def pause(self, goal: str, deadline: Deadline, backoff: RetryBackoff) -> None:
        """Waits before the next try. Raises QuorumUnavailable if the time is up then."""
        await asyncio.sleep(min(backoff.next_s(), deadline.remaining_s()))
        if deadline.has_passed:
            raise QuorumUnavailable(goal, deadline.timeout_ms, self.failures)

    def find_again(self, address: Address, error: ConnectionFailed) -> None:
        """The node at `address` gave no response: the leader is to be found again."""
        if not isinstance(error, ResponseOverdue):
            self.forget(address, str(error))
            return
        self.failures[address] = str(error)
        if self._leader == address:
            self._leader = None

    def forget(self, address: Address, reason: str) -> None:
        """The node at `address` failed: closes its connection; the leader is to be found again."""
        self.failures[address] = reason
        connection = self._connections.pop(address, None)
        if connection is not None:
            connection.fail(reason)
        if self._leader == address:
            self._leader = None
            self._failed = (address, self._epoch)

    def retry_later(self, address: Address, error: RetriableError) -> None:
        """The node responded with a retriable error; follows its leader hint if there is one."""
        self.failures[address] = error.reason
        if not error.stay:
            self._leader = error.hint if error.hint != address else None

    @property
    def open_connection(self) -> ClientConnection | None:
        """The open connection to the leader, None if there is none. Does not connect."""
        connection = None if self._leader is None else self._connections.get(self._leader)
        return connection if connection is not None and connection.is_open else None

    @property
    def epoch(self) -> int:
        """The leader's epoch when it was last found, -1 if no node said it."""
        return self._epoch

    def close(self) -> None:
        """Closes all connections. What is under way then makes no further one."""
        self._closed_s = time.monotonic()
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        self.connector.close()

    def _candidates(self) -> tuple[Address, ...]:
        first = () if self._leader is None else (self._leader,)
        return tuple(dict.fromkeys((*first, *self._bootstrap, *self._learnt)))

    async def _connect(self, address: Address, deadline: Deadline) -> ClientConnection:
        known = self._connections.get(address)
        if known is not None and known.is_open:
            return known
        timeout_s = min(CONNECT_TIMEOUT_S, deadline.remaining_s())
        made = await self.connector.connect(address, timeout_s)
        if self._was_closed_since(deadline):
            made.close()
            raise ConnectionFailed("the client was closed")
        other = self._connections.get(address)
        if other is not None and other.is_open:
            made.close()
            return other
        self._connections[address] = made
        self._asked.discard(address)
        return made

    def _was_closed_since(self, deadline: Deadline) -> bool:
        """Since the call with this deadline has begun: those that begin later connect anew."""
        return deadline.began_s < self._closed_s

    async def _find(self, deadline: Deadline) -> Address | None:
        """Asks all known addresses at once; the first reply that is not stale, or else the newest."""
        tasks = {
            asyncio.create_task(self._ask(address, deadline)) for address in self._candidates()
        }
        stale: LeaderReply | None = None
        timeout_s: float | None = None
        try:
            while tasks:
                done, tasks = await asyncio.wait(
                    tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
                )
                if not done:
                    break
                for named in (task.result() for task in done):
                    if named is None or named.address is None:
                        continue
                    if not self._is_stale(named):
                        return self._take(named)
                    stale = named
                    timeout_s = _NEWER_LEADER_WAIT_S
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if stale is not None:
            return self._take(stale)
        if self._unfit.keys() >= set(self._candidates()):
            # Time changes nothing if every server that was named is of the wrong kind.
            raise _unfit(self._unfit)
        return None

    async def _ask(self, address: Address, deadline: Deadline) -> LeaderReply | None:
        timeout_s = min(CONNECT_TIMEOUT_S, deadline.remaining_s())
        try:
            connection = await self._connect(address, deadline)
            named = await who_leads(connection, min(CONNECT_TIMEOUT_S, deadline.remaining_s()))
            self.cluster.check(named.cluster_id)
            self._asked.add(address)
        except ConnectionFailed as error:
            self.failures[address] = self._reason(address, error, timeout_s)
            self._unfit.pop(address, None)
            if error.problem is not None:
                self._unfit[address] = error.problem
            return None
        except RetriableError as error:
            self.failures[address] = error.reason
            self._unfit.pop(address, None)
            return None
        except (NotSupported, OtherCluster, RequestRefused) as error:
            self.failures[address] = str(error)
            self._unfit[address] = error
            return None
        self._unfit.pop(address, None)
        self._learnt = tuple(dict.fromkeys((*self._learnt, *named.nodes)))
        if named.address is None:
            self.failures[address] = "responds, but knows no leader at the moment"
        return named

    def _reason(self, address: Address, error: ConnectionFailed, timeout_s: float) -> str:
        """The reason to report for a node that failed, in a try that had `timeout_s`."""
        known = self.failures.get(address)
        return str(error) if known is None or timeout_s > _CONCLUSIVE_TIMEOUT_S else known

    def _is_stale(self, named: LeaderReply) -> bool:
        """True if the reply names the leader that failed, in no newer epoch."""
        if self._failed is None:
            return False
        address, epoch = self._failed
        return named.address == address and (named.epoch < 0 or named.epoch <= epoch)

    def _take(self, named: LeaderReply) -> Address | None:
        self._epoch = named.epoch
        return named.address


class _Barred:
    """The leader that one call cannot use because of certificates, and since when."""

    def __init__(self) -> None:
        self._address: Address | None = None
        self._since_s = 0.0

    def note(self, address: Address | None, problem: CertificateProblem | None) -> None:
        """The leader named, None if there is none, failed so. Raises CertificateProblem if it stays."""
        now_s = time.monotonic()
        if problem is None:
            self._address = None
        elif address != self._address:
            self._address, self._since_s = address, now_s
        elif now_s - self._since_s >= _BARRED_S:
            text = f"the leader, {address}, cannot be used: {problem}"
            raise type(problem)(text) from problem


def _unfit(
    servers: Mapping[Address, QuorumError | CertificateProblem],
) -> QuorumError | CertificateProblem:
    """The error to raise if none of the servers will do."""
    errors = list(servers.values())
    problems = [error for error in errors if isinstance(error, CertificateProblem)]
    if len(problems) < len(errors):
        return next(error for error in errors if isinstance(error, QuorumError))
    kind = type(problems[0]) if len({type(each) for each in problems}) == 1 else CertificateProblem
    said = "".join(f"\n  {address}: {problem}" for address, problem in servers.items())
    return kind(f"no node of the quorum can be used:{said}")


async def who_leads(connection: ClientConnection, timeout_s: float) -> LeaderReply:
    """The leader that this node names.

    A broker of a Kafka cluster names itself: it forwards the requests that it supports. Raises
    ConnectionFailed, NotSupported, RequestRefused, and RetriableError at a Kafka controller that has
    just started.
    """
    if connection.offers(MetadataRequest):
        return await _by_metadata(connection, timeout_s)
    if connection.offers(DescribeClusterRequest):
        return await _by_describe_cluster(connection, timeout_s)
    raise NotSupported(
        f"{connection.address} says neither by Metadata nor by DescribeCluster who leads: it is "
        "not a node of a quorum. Name a quorumd node or a Kafka controller."
    )


async def _by_metadata(connection: ClientConnection, timeout_s: float) -> LeaderReply:
    request = MetadataRequest(
        topics=(MetadataRequestTopic(name=TOPIC),),
        allow_auto_topic_creation=connection.version_for(MetadataRequest) < 4,
    )
    response = await connection.request(request, MetadataResponse, timeout_s=timeout_s)
    brokers = {broker.node_id: Address(broker.host, broker.port) for broker in response.brokers}
    nodes = tuple(brokers.values())
    partitions = [partition for topic in response.topics for partition in topic.partitions]
    cluster_id = response.cluster_id
    if not partitions:
        return LeaderReply(connection.address, -1, nodes, cluster_id)
    leader = brokers.get(partitions[0].leader_id)
    return LeaderReply(leader, partitions[0].leader_epoch, nodes, cluster_id)


async def _by_describe_cluster(connection: ClientConnection, timeout_s: float) -> LeaderReply:
    version = connection.version_for(DescribeClusterRequest)
    request = DescribeClusterRequest(endpoint_type=ENDPOINT_TYPE_CONTROLLERS if version else 1)
    response = await connection.request(request, DescribeClusterResponse, timeout_s=timeout_s)
    if response.error_code == ErrorCode.MISMATCHED_ENDPOINT_TYPE:
        return LeaderReply(connection.address, -1, ())
    if response.error_code == ErrorCode.UNSUPPORTED_VERSION:
        # A controller offers the request, and responds so until it has read the metadata version in its log.
        raise RetriableError(
            f"does not say who leads as long as it does not know its log: {response.error_message}"
        )
    check("learn who leads", response.error_code, message=response.error_message)
    brokers = {broker.broker_id: Address(broker.host, broker.port) for broker in response.brokers}
    leader, nodes = brokers.get(response.controller_id), tuple(brokers.values())
    return LeaderReply(leader, -1, nodes, response.cluster_id)


async def cluster_id_of(connection: ClientConnection, timeout_s: float) -> str:
    """The cluster id as this node knows it; a broker is asked as a broker."""
    if not connection.offers(DescribeClusterRequest):
        return ""
    request = DescribeClusterRequest()
    if connection.version_for(DescribeClusterRequest):
        request = DescribeClusterRequest(endpoint_type=ENDPOINT_TYPE_CONTROLLERS)
    response = await connection.request(request, DescribeClusterResponse, timeout_s=timeout_s)
    if response.error_code == ErrorCode.MISMATCHED_ENDPOINT_TYPE:
        response = await connection.request(
            DescribeClusterRequest(), DescribeClusterResponse, timeout_s=timeout_s
        )
    if response.error_code:
        raise RequestRefused(
            "learn the cluster id", error_code(response.error_code), response.error_message
        )
    return response.cluster_id


def check(
    goal: str,
    code: int,
    *,
    message: str | None = None,
    response: Any = None,
    partition: Any = None,
) -> None:
    """Nothing if `code` is 0; else RetriableError for what may pass, with the leader if it is named.

    Raises RequestRefused for the rest.
    """
    if not code:
        return
    error = error_code(code)
    if error in LEADER_MOVED:
        raise RetriableError(explain(error), hint=leader_hint(response, partition))
    if error in RETRIABLE:
        raise RetriableError(explain(error), stay=True)
    raise RequestRefused(goal, error, message)


def leader_hint(response: Any, partition: Any) -> Address | None:
    """The leader's address as CurrentLeader and NodeEndpoints give it, in versions that have them."""
    leader = getattr(partition, "current_leader", None)
    if leader is None or leader.leader_id < 0:
        return None
    for endpoint in getattr(response, "node_endpoints", ()):
        if endpoint.node_id == leader.leader_id and endpoint.host:
            return Address(endpoint.host, endpoint.port)
    return None
