"""What the client's errors say."""

from __future__ import annotations

import pickle

import pytest

import quorumd
from quorumd import AppendFailed, QuorumUnavailable
from quorumd.client.errors import ClientClosed
from quorumd.config.errors import ConfigProblem
from quorumd.raft.types import Address
from quorumd.security.errors import HandshakeOutcome, PeerSpeaksTls, UnusableMaterial
from quorumd.wire.error_codes import ErrorCode

EXCEPTIONS: list[Exception] = [
    AppendFailed("no leader", acknowledged_count=1, last_offset=7, unknown_count=2),
    quorumd.CertificateProblem("it has expired", HandshakeOutcome.EXPIRED),
    quorumd.ChangeRefused("add voter 4", "there is one", ErrorCode.DUPLICATE_VOTER),
    quorumd.ChangeTimedOut("add voter 4", 1_000, "it is behind"),
    ClientClosed(),
    quorumd.ConfigError([ConfigProblem("a.yaml:1", "one"), ConfigProblem("a.yaml:2", "two")]),
    quorumd.Conflict(b"color", 7, since=3),
    quorumd.LockLost("lock 'a'"),
    quorumd.LogReplaced(7, 1, 6, 2),
    quorumd.NotAcquired("lock 'a'", 1.5, "somebody has it"),
    quorumd.NotSupported("there is no such request"),
    quorumd.OffsetNotReached(7, 5, 1_000),
    quorumd.OffsetOutOfRange(9, 1, 7),
    quorumd.OtherCluster("a-cluster", "another"),
    quorumd.PeerSpeaksPlaintext("it does not speak TLS"),
    PeerSpeaksTls(),
    quorumd.QuorumError("another one"),
    QuorumUnavailable("append", 1_000, {Address("localhost", 9093): "refused"}),
    quorumd.ReplicaNotFound("add voter 4", "it does not fetch", "Start it"),
    quorumd.RequestRefused("append", ErrorCode.INVALID_RECORD, "no key"),
    UnusableMaterial([("ssl.keystore.location", "is no file")]),
]


@pytest.mark.parametrize("error", EXCEPTIONS, ids=lambda error: type(error).__name__)
def test_pickled_they_are_the_same_in_another_process(error: Exception) -> None:
    error.add_note("of a worker")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert (str(again), again.args, vars(again)) == (str(error), error.args, vars(error))


def test_none_of_the_public_ones_is_left_out() -> None:
    public = [getattr(quorumd, name) for name in quorumd.__all__]
    kinds = {kind for kind in public if isinstance(kind, type) and issubclass(kind, Exception)}
    assert kinds <= {type(error) for error in EXCEPTIONS}


@pytest.mark.parametrize(
    ("count", "acknowledged", "unknown"),
    [
        (1, "1 record before that is acknowledged", "1 record was sent"),
        (2, "2 records before that are acknowledged", "2 records were sent"),
    ],
)
def test_one_record_is_no_plural(count: int, acknowledged: str, unknown: str) -> None:
    error = AppendFailed("no leader", acknowledged_count=count, last_offset=7, unknown_count=count)
    assert acknowledged in str(error)
    assert unknown in str(error)


def test_a_millisecond_that_has_passed_already_is_not_told() -> None:
    assert "could not wait within 2 s" in str(QuorumUnavailable("wait", 1_999, {}))
