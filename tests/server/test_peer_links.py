"""What an operator learns of peers that are not reached."""

from __future__ import annotations

from quorumd.raft.types import Address
from quorumd.security.errors import CertificateProblem, HandshakeBroken
from quorumd.server.model.peer_calls import HungUp
from quorumd.server.peers.peer_links import OTHER_SHOWN_S, SHOWN_S, PeerLinks

WHERE = Address("db2", 9093)
TEXT = "node 2 at db2:9093: it closed the connection instead of responding"


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_a_peer_that_hangs_up_again_and_again_is_warned_of_though_it_is_reached() -> None:
    links = PeerLinks(clock=Clock())
    news = []
    for _ in range(4):
        links.note_made("node 2", 2, is_behind=False)
        news.append(links.note_failed("node 2", WHERE, HungUp()))
        links.note_made("node 2", 2, is_behind=False)
        (text,) = links.unreachable()
        assert text.startswith(TEXT)
    # Once is a process that ends; the third time in a row it is no accident, and a line in the log.
    assert [text is not None for text in news] == [False, False, True, False]
    assert links.warnings() == [text]
    assert "quorum.node.principals" in text


def test_it_is_not_warned_of_any_more_when_it_responds_or_nothing_was_asked_for_a_minute() -> None:
    for ends_by_response in (True, False):
        clock = Clock()
        links = PeerLinks(clock=clock)
        for _ in range(3):
            links.note_failed("node 2", WHERE, HungUp())
        assert links.warnings()
        if ends_by_response:
            links.note_response("node 2", None, WHERE, "c")
        else:
            clock.now_s += SHOWN_S + 1
        assert links.warnings() == links.unreachable() == []
        assert links.note_failed("node 2", WHERE, HungUp()) is None
        assert links.warnings() == []


def test_one_that_is_gone_meanwhile_is_called_that() -> None:
    links = PeerLinks(clock=Clock())
    for _ in range(3):
        links.note_failed("node 2", WHERE, HungUp())
    links.note_failed("node 2", WHERE, ConnectionRefusedError())
    assert links.warnings() == []
    assert links.unreachable() == [
        "node 2 at db2:9093: no process listens there: the connection is refused"
    ]
    links.note_failed("node 2", WHERE, HungUp())
    links.forget("node 2", 2)
    assert links.unreachable() == []


def test_what_an_operator_had_to_mend_is_mended_when_the_peer_is_reached() -> None:
    links = PeerLinks(clock=Clock())
    assert links.note_failed("node 2", WHERE, CertificateProblem("it has expired"))
    assert links.warnings() == ["node 2 at db2:9093: it has expired"]
    links.note_made("node 2", 2, is_behind=False)
    assert links.warnings() == links.unreachable() == []


def test_a_handshake_that_was_cut_short_is_nothing_to_mend() -> None:
    """The process there may have ended."""
    links = PeerLinks(clock=Clock())
    assert links.note_failed("node 2", WHERE, HandshakeBroken("it was cut short")) is None
    assert links.warnings() == []
    assert links.unreachable() == ["node 2 at db2:9093: it was cut short"]


def test_a_replica_whose_links_are_plaintext_is_warned_of_until_it_is_no_peer_any_more() -> None:
    links = PeerLinks(clock=Clock())
    for replica_id in (2, 3):
        links.note_made(f"node {replica_id}", replica_id, is_behind=True)
    links.forget("node 2")
    assert len(links.warnings()) == 2, "another peer has that id"
    links.forget("node 2", 2)
    (text,) = links.warnings()
    assert text.startswith("node 3 connects to others in plaintext still")
    links.note_made("node 3", 3, is_behind=False)
    assert links.warnings() == []
    assert not links.behind, "from now on only its certificate counts"


def test_a_node_of_another_cluster_in_place_of_a_peer_is_warned_of() -> None:
    clock = Clock()
    links = PeerLinks(clock=clock)
    assert not links.may_forget_problems
    links.note_response("node 2", "INCONSISTENT_CLUSTER_ID", WHERE, "mine")
    assert links.may_forget_problems, "the next one may be the peer's own"
    (text,) = links.warnings()
    assert text.startswith("node 2 at db2:9093 belongs to another cluster")
    assert "is of mine" in text
    assert links.unreachable() == [text]
    assert links.foreign() == {"node 2": text}
    # It is asked again and again; that a connection is made, or refused elsewhere, says nothing of it.
    links.note_made("node 2", 2, is_behind=False)
    assert links.warnings() == [text]
    links.note_response("node 2", None, WHERE, "mine")
    assert links.warnings() == links.unreachable() == []
    links.note_response("node 2", "INCONSISTENT_CLUSTER_ID", WHERE, "mine")
    clock.now_s += SHOWN_S + 1
    assert links.warnings() == [], "it has not responded for long"
    links.forget("node 2", 2)
    assert not links.may_forget_problems


def test_an_address_at_which_another_replica_responds_is_told_until_the_peer_itself_does() -> None:
    clock = Clock()
    links = PeerLinks(clock=clock)
    links.note_response("node 2", "INVALID_VOTER_KEY", WHERE, "c")
    assert links.may_forget_problems
    (text,) = links.unreachable()
    assert text.startswith("node 2 is not at db2:9093: another replica responded there.")
    assert "quorum.bootstrap.servers" in text
    assert "quorumctl replace-voter 2" in text
    assert links.is_missing(2), "it is not up as far as this node can tell"
    assert links.warnings() == [], "a node that moves is soon found"
    # Connections to that address go on to be made, for the peer may come back to it.
    links.note_made("node 2", 2, is_behind=False)
    assert links.unreachable() == [text]
    links.note_response("node 2", None, WHERE, "c")
    assert links.unreachable() == []
    assert not links.is_missing(2)
    for forget in (True, False):
        links.note_response("node 2", "INVALID_VOTER_KEY", WHERE, "c")
        if forget:
            links.forget("node 2", 2)
        else:
            clock.now_s += OTHER_SHOWN_S + 1
        assert links.unreachable() == []
        assert not links.is_missing(2)


def test_what_an_operator_had_to_mend_is_no_more_where_the_peer_is_gone_for_another_reason() -> (
    None
):
    links = PeerLinks(clock=Clock())
    links.note_failed("node 2", WHERE, CertificateProblem("its certificate has expired"))
    assert links.warnings() == links.unreachable()
    links.note_failed("node 2", WHERE, ConnectionRefusedError())
    assert (links.warnings(), len(links.unreachable())) == ([], 1)
