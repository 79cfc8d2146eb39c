"""What the browser is given: from this node alone, under a strict policy, and with text as text."""

from __future__ import annotations

import asyncio
import json
import re
from importlib.resources import files

import pytest

from quorumd.raft.types import Address
from quorumd.server.http.http_server import HttpServer
from quorumd.server.model.partition_view import PendingChange
from quorumd.server.page.page import QuorumPage
from quorumd.server.page.source import PageSource
from tests.page.sources import source_for, status_of
from tests.support.cluster import FixedView
from tests.support.serving import run

STATIC = files("quorumd.server.page") / "static"
HTML = (STATIC / "index.html").read_text()
SCRIPT = (STATIC / "page.js").read_text()
STYLE = (STATIC / "page.css").read_text()
PATHS = ["/", "/page.css", "/page.js", "/icon.svg", "/page.json", "/history.json", "/claims.json"]
HOSTILE = "</script><img src=x onerror=alert(1)>\u2028\"'&\ud800"


async def get(
    source: PageSource, path: str, method: str = "GET"
) -> tuple[int, dict[str, str], bytes]:
    """Status, headers (lower case) and body."""
    page = QuorumPage(source)

    async def metrics(accept: str) -> tuple[bytes, str]:
        raise AssertionError(f"nobody asked for metrics ({accept})")

    http = HttpServer(
        Address("127.0.0.1", 0),
        ready=lambda: (True, "ready"),
        status=dict,
        metrics=metrics,
        pages=page.pages,
    )
    await http.open()
    page.open()
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", http.port)
        writer.write(f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        answer = await reader.read()
        writer.transport.abort()
    finally:
        await http.close()
        await page.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    return int(first.split(" ")[1]), headers, body


@pytest.mark.parametrize("path", PATHS)
def test_every_part_has_the_strict_policy(path: str) -> None:
    status, headers, body = run(get(source_for(FixedView()), path))
    assert status == 200
    assert body
    policy = dict(
        part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";")
    )
    assert policy["default-src"] == "'none'"
    assert {policy[f"{kind}-src"] for kind in ("script", "style", "img", "connect")} == {"'self'"}
    assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert policy["require-trusted-types-for"] == "'script'"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cache-control"] == "no-store"


def test_types_are_what_a_browser_needs() -> None:
    async def work() -> list[str]:
        found = [await get(source_for(FixedView()), path, "HEAD") for path in PATHS]
        assert all(body == b"" for _, _, body in found)
        return [headers["content-type"].partition(";")[0] for _, headers, _ in found]

    assert run(work()) == [
        "text/html",
        "text/css",
        "text/javascript",
        "image/svg+xml",
        *3 * ["application/json"],
    ]


def test_the_page_refers_to_what_is_served_and_to_nothing_else() -> None:
    served = {path.removeprefix("/") for path in PATHS} | {"status", "readyz", "livez", "metrics"}
    assert set(re.findall(r'(?:href|src)="([^"]*)"', HTML)) <= served
    assert set(re.findall(r'ask\("([^"]*)"\)', SCRIPT)) == {
        "page.json",
        "history.json",
        "claims.json",
    }
    namespace = "http://www.w3.org/2000/svg"
    for text in (HTML, SCRIPT.replace(namespace, ""), STYLE):
        assert "//" not in re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE)
    assert "url(" not in STYLE
    assert "@import" not in STYLE


def test_nothing_in_the_page_needs_a_laxer_policy() -> None:
    assert re.findall(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=|javascript:", HTML) == []
    makes_markup = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function"
    assert re.findall(makes_markup, SCRIPT) == []


def test_every_element_that_the_script_names_is_in_the_page() -> None:
    ids = set(re.findall(r'\bid="([^"]+)"', HTML))
    named = set(re.findall(r'\$\("([^"]+)"\)', SCRIPT)) | set(re.findall(r'plot\("(\w+)"', SCRIPT))
    assert named <= ids
    assert {f"{name}-now" for name in re.findall(r'plot\("(\w+)"', SCRIPT)} <= ids


def test_hostile_names_arrive_as_they_are() -> None:
    view = FixedView(cluster_id=HOSTILE, pending=(PendingChange(HOSTILE, None, 1000, HOSTILE),))
    status = status_of(view, last_report=HOSTILE)
    source = source_for(view, status=status, problems=lambda: [HOSTILE])
    code, headers, body = run(get(source, "/page.json"))
    assert (code, headers["content-type"]) == (200, "application/json")
    assert body.isascii()
    found = json.loads(body)
    assert found["status"]["cluster_id"] == found["status"]["last_report"] == HOSTILE
    assert found["findings"][0] == {"level": "error", "text": f"This node: {HOSTILE}"}


def test_the_history_names_its_columns() -> None:
    code, _, body = run(get(source_for(FixedView()), "/history.json"))
    found = json.loads(body)
    assert code == 200
    row = dict(zip(found["fields"], found["samples"][0], strict=True))
    assert (row["number"], row["epoch"], row["leader_id"]) == (1, 7, 2)
    used = set(re.findall(r'\["((?:commit|sync)\w*)"', SCRIPT)) | {"at_s", "commit_p99_ms"}
    assert used <= set(found["fields"])
