"""The page in a real browser, shown by a server whose node is made up."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import uvloop

from quorumd.client.coordination.keys import ClaimKind, Place
from quorumd.raft.types import Address, Endpoint, ReplicaKey, Voter, VoterSet
from quorumd.server.http.http_server import HttpServer
from quorumd.server.model.partition_view import PendingChange, ReplicaStatus
from quorumd.server.page.page import QuorumPage
from quorumd.server.page.source import PageSource
from quorumd.wire.records import Record
from tests.page.sources import NOW_MS, source_for, status_of
from tests.support.browser import Tab
from tests.support.claims_log import ClaimsLog, held, value
from tests.support.cluster import FixedView, voter

START_S = 20.0
MARKUP = '<img src=x onerror="document.title=1"><script>document.title=2</script>&amp;\u202e'


def quorum() -> FixedView:
    """Node 2 leads 1 and 3; 3 has been silent for a while."""
    view = FixedView()
    view.voter_rows = tuple(
        ReplicaStatus(voter(node).key, end, NOW_MS - ago_ms, NOW_MS - ago_ms)
        for node, end, ago_ms in ((1, 119, 20), (2, 120, 0), (3, 90, 30_000))
    )
    return view


@contextmanager
def served(source: PageSource, port: int = 0) -> Iterator[tuple[str, int]]:
    """The page's URL and port, on an event loop of its own."""
    ready, stop = threading.Event(), asyncio.Event()
    found: list[int] = []
    loops: list[asyncio.AbstractEventLoop] = []

    async def metrics(accept: str) -> tuple[bytes, str]:
        return b"", accept

    async def serve() -> None:
        page = QuorumPage(source)
        http = HttpServer(
            Address("127.0.0.1", port),
            ready=lambda: (True, "ready"),
            status=dict,
            metrics=metrics,
            pages=page.pages,
        )
        await http.open()
        page.open()
        found.append(http.port)
        loops.append(asyncio.get_running_loop())
        ready.set()
        await stop.wait()
        await http.close()
        await page.close()

    # As in the daemon: asyncio's own server leaks a connection that was accepted as it closed.
    thread = threading.Thread(target=lambda: uvloop.run(serve()))
    thread.start()
    assert ready.wait(START_S)
    try:
        yield f"http://127.0.0.1:{found[0]}/", found[0]
    finally:
        loops[0].call_soon_threadsafe(stop.set)
        thread.join()


@pytest.fixture
def shown(tab: Tab) -> Iterator[Tab]:
    """The made-up quorum on a desktop."""
    with served(source_for(quorum())) as (url, _):
        tab.go(url)
        tab.wait_text("Node 2 leads", "h1")
        yield tab


def count(tab: Tab, what: str) -> int:
    return sum(what in url for url in tab.requested())


def wait_for(look: Callable[[], bool], tab: Tab, what: str) -> None:
    """Let the page's own clock run: a second, until it is so."""
    for _ in range(40):
        if look():
            return
        tab.evaluate("new Promise((resolve) => setTimeout(resolve, 250))")
    raise AssertionError(f"waited 10 s for {what}")


def test_who_leads_who_is_silent_and_what_that_means_is_to_be_read(shown: Tab) -> None:
    assert shown.evaluate("document.title") == "(2) Node 2 leads · quorumd"
    wrong = shown.text("#wrong")
    assert "Voter 3 has not fetched for 30 s" in wrong
    assert "If one more voter fails, the quorum stops" in wrong
    table = shown.evaluate(
        "[...document.querySelectorAll('#replicas tr')].map((row) =>"
        " [...row.cells].map((cell) => cell.firstChild.textContent).slice(0, 6))"
    )
    assert table == [
        ["1", "voter", "keeps up", "119", "1", "now"],
        ["2 (this node)", "leader", "leads", "120", "0", "now"],
        ["3", "voter", "silent", "90", "30", "30 s ago"],
    ]
    assert shown.complaints() == []


def test_why_a_certificate_keeps_a_peer_away_is_to_be_read(tab: Tab) -> None:
    why = (
        "node 3 at db3:9093: its certificate (CN=quorumd-3, issued by CN=<b>ca</b>) expired 2 h ago"
    )
    with served(source_for(quorum(), warnings=lambda: [why], unreachable=lambda: {3})) as (url, _):
        tab.go(url)
        tab.wait_text(f"This node: {why}", "#wrong")
        assert tab.complaints() == []


def test_nothing_is_loaded_from_elsewhere_and_the_history_only_once(shown: Tab) -> None:
    wait_for(lambda: count(shown, "page.json") >= 3, shown, "three questions")
    base = shown.evaluate("location.href")
    assert {url for url in shown.requested() if not url.startswith(base)} == set()
    assert count(shown, "history.json") == 1


def test_the_policy_holds_in_the_browser(shown: Tab) -> None:
    """A script that got in could neither make markup nor ask another host."""
    tried = """(async () => {
        const refused = [];
        addEventListener("securitypolicyviolation", (event) => refused.push(event.effectiveDirective));
        try { document.body.innerHTML = "<b>"; } catch (error) { refused.push(error.name); }
        await fetch("http://127.0.0.2:9/").catch(() => {});
        const image = new Image();
        await new Promise((resolve) => { image.onerror = resolve; image.src = "http://127.0.0.2:9/x"; });
        await new Promise((resolve) => setTimeout(resolve, 100));
        return refused;
    })()"""
    refused = shown.evaluate(tried)
    assert {"TypeError", "require-trusted-types-for", "connect-src", "img-src"} <= set(refused)


def test_hostile_names_are_shown_as_text(tab: Tab) -> None:
    view = quorum()
    view.cluster_id = MARKUP
    view.pending = (PendingChange(MARKUP, None, 1000, MARKUP),)
    view.voters = VoterSet.of(
        Voter(row.key, (Endpoint(MARKUP, MARKUP, 9093),)) for row in view.voter_rows
    )
    status = status_of(view, last_report=MARKUP, version=MARKUP, storage_dir=MARKUP)
    with served(source_for(view, status=status, problems=lambda: [MARKUP])) as (url, _):
        tab.go(url)
        tab.wait_text("Node 2 leads", "h1")
        for place in ("#viewer", "#wrong", "#replicas", "#about", "#report"):
            assert MARKUP in tab.evaluate(f"document.querySelector('{place}').textContent"), place
        assert tab.evaluate("document.images.length") == 1
        assert tab.evaluate("document.scripts.length") == 1
        assert tab.evaluate("document.title").endswith("Node 2 leads · quorumd")
        assert tab.complaints() == []


def test_numbers_that_nobody_expects_do_no_harm(tab: Tab) -> None:
    view = replace(quorum(), log_end_offset=2**63 - 1, high_watermark=-1, cluster_id=None)
    with served(source_for(view)) as (url, _):
        tab.go(url)
        tab.wait_text("Node 2 leads", "h1")
        tab.wait_text("9,223,372,036,854,", "#log")
        assert tab.complaints() == []


def test_a_leader_that_is_known_and_does_not_answer_is_not_said_to_lead(tab: Tab) -> None:
    view = replace(quorum(), is_leader=False, role="follower", local=voter(1).key)
    with served(source_for(view, leader_id=lambda: None)) as (url, _):
        tab.go(url)
        tab.wait_text("No leader responds", "h1")
        assert "leader" not in tab.text("#replicas")
        assert "The last leader, node 2, does not respond to it" in tab.text("#since")


def test_a_former_leader_shows_its_curve_and_says_who_times_commits_now(tab: Tab) -> None:
    view = replace(quorum(), is_leader=False, role="follower", local=voter(1).key)
    source = source_for(view)
    with served(source) as (url, _):
        source.metrics.observe_commit(0.005)
        tab.go(url)
        tab.wait_text("node 2 times it now", "#latency-now")
        assert tab.evaluate("document.querySelector('#latency .curve').getAttribute('d') !== ''")


def test_the_keyboard_pauses_and_goes_on(shown: Tab) -> None:
    shown.press("Tab")
    assert shown.evaluate("document.activeElement.id") == "pause"
    shown.press("Space")
    shown.wait_text("paused", "#live")
    shown.evaluate("new Promise((resolve) => setTimeout(resolve, 1500))")
    before = count(shown, "page.json")
    shown.evaluate("new Promise((resolve) => setTimeout(resolve, 1500))")
    assert count(shown, "page.json") == before
    shown.press("Space")
    shown.wait_text("live", "#live")
    assert count(shown, "page.json") > before


def test_a_screen_reader_is_told_headings_a_table_and_what_the_curves_say(shown: Tab) -> None:
    roles = shown.roles()
    names = [name for role, name in roles if role == "heading"]
    assert names[:3] == ["Node 2 leads", "What is wrong", "Replicas"]
    assert ("main", "") in roles
    assert ("button", "Pause") in roles
    assert sum(role == "row" for role, _ in roles) == 4
    assert [name for role, name in roles if role == "columnheader"][:3] == ["Node", "Role", "State"]
    curves = [name for role, name in roles if role in ("image", "img")]
    assert "Nothing was appended." in curves
    assert "" not in curves
    said = shown.evaluate("document.querySelector('[role=status]').textContent")
    assert said == "Node 2 leads, no errors, 2 warnings"


@pytest.mark.parametrize("width", [320, 390, 768, 1180])
def test_no_width_needs_scrolling_sideways(width: int, tab: Tab) -> None:
    view = quorum()
    key = ReplicaKey(1, view.voter_rows[0].key.uuid)
    long_host = "averylonghostnamewithoutanybreak" * 4
    view.voters = VoterSet.of([Voter(key, (Endpoint("C", long_host, 9093),)), voter(2), voter(3)])
    with served(source_for(view)) as (url, _):
        tab.show(width=width, phone=width < 500)
        tab.go(url)
        tab.wait_text(long_host, "#replicas")
        assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
        if width < 500:
            # Cards are still a table to a screen reader.
            roles = [role for role, _ in tab.roles()]
            assert (roles.count("table"), roles.count("row"), roles.count("cell")) == (1, 4, 21)


def secured_status(view: FixedView) -> dict[str, object]:
    """As a node says it whose first listener is TLS."""

    def certificate(role: str, subject: str, ends_in_s: int) -> dict[str, object]:
        return {"role": role, "subject": subject, "ends": "", "ends_in_s": ends_in_s}

    long_name = "CN=averylongnameofacertificationauthoritywithoutanybreak" * 3
    secure = {
        "name": "SECURE",
        "address": "db1.example.com:9093",
        "protocol": "SSL",
        "connections": 12,
        "client_auth": "required",
        "certificates": [
            certificate("own", "CN=quorumd-2", 90_000),
            certificate("ca", long_name, -7200),
            certificate("crl", MARKUP, 60),
        ],
        "reload_problems": [],
    }
    plain = {"name": "OLD", "address": "db1:9092", "protocol": "PLAINTEXT", "connections": 1}
    return status_of(
        view,
        listeners=[secure, plain],
        links="SSL",
        plaintext_connections=1,
        http={"address": "127.0.0.1:8080", "protocol": "PLAINTEXT"},
    )


@pytest.mark.parametrize("width", [320, 390, 1180])
def test_listeners_with_tls_are_shown_with_their_certificates(width: int, tab: Tab) -> None:
    view = quorum()
    with served(source_for(view, status=secured_status(view))) as (url, _):
        tab.show(width=width, phone=width < 500)
        tab.go(url)
        tab.wait_text("TLS, 12 connections", "#access")
        shown = tab.text("#access")
        for words in (
            "clients show a certificate; CN=quorumd-2 ends in 1 d 1 h; CA CN=avery",
            "ended 2 h ago",
            f"revocation list of {MARKUP} ends in 1 min",
            "plaintext, 1 connection",
            "Other nodes are reached by",
        ):
            assert words in shown
        assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert tab.complaints() == []


def test_without_tls_the_page_says_nothing_of_it(shown: Tab) -> None:
    assert shown.evaluate("getComputedStyle(document.querySelector('#access')).display") == "none"


def test_dark_mode_is_dark(shown: Tab) -> None:
    brightness = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g)[0] * 1"
    assert shown.evaluate(brightness) > 200
    shown.show(width=1180, dark=True)
    assert shown.evaluate(brightness) < 60


def test_a_node_that_goes_is_said_to_be_gone_and_comes_back_by_itself(tab: Tab) -> None:
    with served(source_for(quorum())) as (url, port):
        tab.go(url)
        tab.wait_text("live", "#live")
    tab.wait_text("no response since", "#live")
    assert tab.text("h1") == "This node does not respond"
    assert tab.evaluate("document.getElementById('main').className") == "stale"
    with served(source_for(replace(quorum(), leader_epoch=9)), port):
        tab.wait_text("live", "#live")
        tab.wait_text("Epoch 9", "#since")
        assert tab.evaluate("document.getElementById('main').className") == ""


def test_a_page_that_nobody_sees_asks_nothing(shown: Tab) -> None:
    other = shown.beside()
    shown.evaluate("new Promise((resolve) => setTimeout(resolve, 1500))")
    before = count(shown, "page.json")
    shown.evaluate("new Promise((resolve) => setTimeout(resolve, 1500))")
    assert count(shown, "page.json") == before
    other.close()
    shown.see()
    wait_for(lambda: count(shown, "page.json") > before, shown, "the next question")


def test_names_that_are_held_are_shown_and_those_who_wait_are_counted(
    tab: Tab, tmp_path: Path
) -> None:
    log = ClaimsLog(tmp_path)
    queued = Place(ClaimKind.LOCK, "jobs/nightly", "f" * 32).key
    log.append(held("jobs/nightly", 11), Record(key=queued, value=value(12, claim="f" * 32)))
    log.append(held("<b>api</b>", kind=ClaimKind.REGISTRATION, text="<i>10.0.0.1:80</i>"))
    view = replace(quorum(), high_watermark=log.end_offset, log_end_offset=log.end_offset)
    with served(source_for(view, storage_dir=tmp_path)) as (url, _):
        tab.go(url)
        tab.wait_text("jobs/nightly", "#claimed")
        rows = tab.evaluate(
            "[...document.querySelectorAll('#claimed tr')].map((row) =>"
            " [...row.cells].map((cell) => cell.textContent))"
        )
        assert [row[:3] + row[5:] for row in rows] == [
            ["jobs/nightly", "lock", "me on here, pid 11token 0", "1", ""],
            [
                "<b>api</b>",
                "registration",
                "me on here, pid 7token 2",
                "0",
                "<i>10.0.0.1:80</i>",
            ],
        ]
        assert tab.evaluate("document.querySelector('#claims').hidden") is False
        log.append(Record(key=held("jobs/nightly").key, value=None), Record(key=queued, value=None))
        view.high_watermark = log.end_offset
        wait_for(
            lambda: "jobs/nightly" not in tab.text("#claimed"), tab, "what is given back to go"
        )
        assert tab.complaints() == []


def test_names_are_withheld_where_the_log_is_for_certificates_and_the_page_is_not(tab: Tab) -> None:
    source = source_for(quorum(), claims_withheld="The log is not for everybody.")
    with served(source) as (url, _):
        tab.go(url)
        tab.wait_text("The log is not for everybody.", "#claims-note")
        assert tab.evaluate("document.querySelector('#claims-table').hidden") is True
