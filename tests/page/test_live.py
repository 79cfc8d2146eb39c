"""The page of a live quorum in a real browser, while leaders die, stop and come back."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator
from functools import partial

import pytest

from tests.support.browser import Browser, Tab, missing_chromium
from tests.support.live_cluster import Cluster, running_cluster
from tests.support.load import Load

pytestmark = pytest.mark.skipif(bool(missing_chromium()), reason=missing_chromium())

SHOWN_S = 5.0
"""How long after an election a page may still show the old leader."""
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def quorum(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Voters 1 to 3, and node 4, which observes."""
    with running_cluster(tmp_path_factory.mktemp("quorum"), observers=1) as cluster:
        yield cluster


@pytest.fixture
def restored(quorum: Cluster) -> Iterator[None]:
    """A test that failed half-way must not make the next one fail."""
    yield
    quorum.start()
    quorum.wait_ready()


def page_of(quorum: Cluster, node: int, tab: Tab) -> Tab:
    tab.go(quorum.http_url(node, "/"))
    tab.wait_text("live", "#live", PATIENCE_S)
    return tab


def states(tab: Tab) -> dict[int, str]:
    """What is written of each replica's state."""
    rows = tab.evaluate(
        "[...document.querySelectorAll('#replicas tr')].map((row) =>"
        " [parseInt(row.cells[0].firstChild.textContent), row.cells[2].firstChild.textContent])"
    )
    return {int(node): state for node, state in rows}


def all_keep_up(tab: Tab) -> bool:
    return set(states(tab).values()) == {"leads", "keeps up"}


def beats(tab: Tab) -> bool:
    """True if the curve of commits is drawn."""
    return bool(tab.evaluate("document.querySelector('#commits .curve').getAttribute('d') !== ''"))


@pytest.mark.usefixtures("restored")
def test_pages_of_leader_follower_and_observer_show_the_next_leader_when_the_first_is_killed(
    quorum: Cluster, browser: Browser
) -> None:
    old = quorum.wait_leader()
    others = [node for node in quorum.voters if node != old]
    tabs = {node: browser.open() for node in (*quorum.voters, 4)}
    with Load(quorum, writers=1) as load:
        load.wait_progress()
        for node, tab in tabs.items():
            tab.show(width=1180)
            page_of(quorum, node, tab)
            tab.wait_text(f"Node {old} leads", "h1", PATIENCE_S)
            quorum.wait_for(partial(all_keep_up, tab), "everybody keeps up", PATIENCE_S)
            assert states(tab)[old] == "leads"
            assert sorted(states(tab)) == [1, 2, 3, 4]
            quorum.wait_for(partial(beats, tab), "a curve", PATIENCE_S)
        # Only the leader times its commits, and each page says so.
        tabs[old].see()
        tabs[old].wait_text("ms", "#latency-now")
        assert f"see the page of node {old}" in tabs[4].text("#latency")

        watched = others[0]
        tabs[watched].see()
        quorum.kill(old)
        new = quorum.wait_leader(other_than=old)
        begun = time.monotonic()
        tabs[watched].wait_text(f"Node {new} leads", "h1", SHOWN_S)
        assert time.monotonic() - begun < SHOWN_S
        for node in (*others, 4):
            tabs[node].see()
            tabs[node].wait_text(f"Node {new} leads", "h1", SHOWN_S)
            tabs[node].wait_text(f"Voter {old} has not fetched", "#wrong", PATIENCE_S)
            tabs[node].wait_text("If one more voter fails, the quorum stops", "#wrong")
            assert states(tabs[node])[old] in ("not running", "silent")
        tabs[old].see()
        tabs[old].wait_text("This node does not respond", "h1", PATIENCE_S)

        quorum.start(old)
        quorum.wait_ready(old)
        tabs[old].wait_text(f"Node {new} leads", "h1", PATIENCE_S)
        quorum.wait_for(partial(all_keep_up, tabs[old]), "everybody keeps up", PATIENCE_S)
        assert "Voter" not in tabs[old].text("#wrong")
    for tab in tabs.values():
        # The node that was away refused connections: that, and nothing else, may have been an error.
        assert [text for text in tab.complaints() if "ERR_" not in text] == []
        tab.close()


@pytest.mark.usefixtures("restored")
def test_without_a_majority_the_pages_of_voter_and_observer_say_what_is_wrong(
    quorum: Cluster, browser: Browser, tab: Tab
) -> None:
    left = next(node for node in quorum.voters if node != quorum.wait_leader())
    observer = browser.open()
    observer.show(width=390, phone=True)
    page_of(quorum, 4, observer)
    page_of(quorum, left, tab)
    for node in quorum.voters:
        if node != left:
            quorum.kill(node)
    tab.wait_text("No leader", "h1", PATIENCE_S)
    tab.wait_text("of 3 voters at most 1 runs, 2 are needed", "#wrong", PATIENCE_S)
    assert "Error:" in tab.text("#wrong")
    tab.wait_text("connections are refused, so the process does not run", "#wrong", PATIENCE_S)
    tab.wait_text("The last leader, node", "#since")
    assert "Only a leader knows" in tab.text("#report-note")
    observer.see()
    observer.wait_text("No leader", "h1", PATIENCE_S)
    observer.wait_text("Error:", "#wrong")
    quorum.start()
    quorum.wait_leader()
    observer.wait_text("leads", "h1", PATIENCE_S)
    tab.see()
    quorum.wait_for(partial(all_keep_up, tab), "everybody keeps up", PATIENCE_S)
    assert "Error:" not in tab.text("#wrong")
    # The time without a leader stays to be seen.
    assert "no leader" in tab.evaluate("document.getElementById('epochs').textContent")
    observer.close()


@pytest.mark.usefixtures("restored")
def test_a_leader_that_hangs_is_replaced_on_the_page_and_holds_it_up_no_longer_than_the_quorum(
    quorum: Cluster, tab: Tab
) -> None:
    old = quorum.wait_leader()
    watched = next(node for node in quorum.voters if node != old)
    page_of(quorum, watched, tab)
    tab.wait_text(f"Node {old} leads", "h1", PATIENCE_S)
    quorum.suspend(old)
    try:
        new = quorum.wait_leader(other_than=old)
        tab.wait_text(f"Node {new} leads", "h1", SHOWN_S)
        tab.wait_text(f"Voter {old} has not fetched", "#wrong", PATIENCE_S)
    finally:
        quorum.resume(old)
    quorum.wait_for(partial(all_keep_up, tab), "everybody keeps up", PATIENCE_S)


@pytest.mark.usefixtures("restored")
def test_a_page_that_is_opened_late_shows_the_past(quorum: Cluster, tab: Tab) -> None:
    leader = quorum.wait_leader()
    with Load(quorum, writers=1) as load:
        load.wait_progress(100)
        quorum.wait_for(
            lambda: len(history(quorum, leader)) >= 5, "some seconds of history", PATIENCE_S
        )
    page_of(quorum, leader, tab)
    quorum.wait_for(partial(beats, tab), "a curve at once", SHOWN_S)
    assert f"node {leader} · epoch" in tab.text("#epochs")


def history(quorum: Cluster, node: int) -> list[object]:
    with urllib.request.urlopen(quorum.http_url(node, "/history.json"), timeout=5) as answer:
        found: list[object] = json.load(answer)["samples"]
    return found
