"""From plaintext to TLS and back as docs/security.md has it, by its own lines and commands and under load."""

from __future__ import annotations

import asyncio
import re
import textwrap
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from quorumd import QuorumClient, Security
from tests.docs.three_hosts import ADMIN, NODES, Hosts, section, set_up_blocks, three_hosts
from tests.support.secure_cluster import Appending

pytestmark = [pytest.mark.live, pytest.mark.timeout(400)]

TITLE = "From plaintext to TLS"


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    with three_hosts(tmp_path) as made:
        yield made


def rounds() -> list[tuple[list[str], list[str]]]:
    """Of each step of the document: the lines for the configuration, and the commands."""
    steps = re.split(r"^\d\. \*\*", section(TITLE), flags=re.MULTILINE)[1:]
    found = []
    for step in steps:
        fenced = re.findall(r"^   ```yaml\n(.*?)\n   ```$", step, re.MULTILINE | re.DOTALL)
        (keys,) = (textwrap.dedent(each).splitlines() for each in fenced)
        commands = [line.strip() for line in re.findall(r"^ {7}(\S.*)$", step, re.MULTILINE)]
        found.append((keys, commands))
    return found


def changed(config: str, keys: list[str]) -> str:
    """The file with these keys set: where it has one, its line is replaced."""
    for line in keys:
        key = line.partition(":")[0]
        config, count = re.subn(rf"^{re.escape(key)}:.*$", line, config, flags=re.MULTILINE)
        if not count:
            config += f"{line}\n"
    return config


def as_on(node: int, line: str) -> str:
    """A line that is shown for db1; what another host advertises is that host."""
    return line.replace("db1", f"db{node}") if line.startswith("advertised.listeners:") else line


def roll(hosts: Hosts, configs: dict[int, str]) -> None:
    for node in NODES:
        hosts.config(node).write_text(configs[node])
        hosts.restart(node)


def values_of(servers: str, security: Security | None) -> dict[int, bytes | None]:
    """All records of the log, by offset."""

    async def read() -> dict[int, bytes | None]:
        async with QuorumClient(servers, security=security) as client:
            found: dict[int, bytes | None] = {}
            offset = 0
            while True:
                fetched = await client.fetch(offset, max_wait_ms=0)
                for batch in fetched.batches:
                    found |= {each.offset: each.value for each in batch.records}
                    offset = batch.header.last_offset + 1
                if not fetched.batches:
                    return found

    return asyncio.run(read())


def test_the_document_leads_from_plaintext_to_tls_and_back(hosts: Hosts, tmp_path: Path) -> None:
    block = set_up_blocks(tmp_path)
    hosts.run(block("quorumd certs ca "))
    install, five = block("install -d "), block("listener.security.protocol.map")
    (first, second, third) = rounds()
    steps: list[dict[int, str]] = [{}]
    for node in NODES:
        hosts.install(install, node)
        hosts.set_up(node)
        steps[0][node] = hosts.config(node).read_text()
        hosts.run(["quorumd format --config /etc/quorumd/controller.yaml --bootstrap"], node)
        hosts.start(node)
    for node in NODES:
        hosts.wait_ready(node)
    # The five lines of the set-up, with the map of each step.
    lines = [five[1:]]
    for keys, _ in (first, second, third):
        lines.append(keys)
        as_one = [line for each in lines for line in each]
        own = {node: [hosts.here(as_on(node, line), node) for line in as_one] for node in NODES}
        steps.append({node: changed(steps[0][node], own[node]) for node in NODES})

    plain, secure = (
        ",".join(hosts.here(f"{hosts.address(node)}:{port}", node) for node in NODES)
        for port in (9093, 9095)
    )
    security = Security.from_properties(hosts.host(ADMIN) / "certs/alice.properties")
    moved, back = Appending(secure, security), Appending(plain)
    with ExitStack() as moving:
        with Appending(plain) as appending:
            roll(hosts, steps[1])
            described = hosts.run(first[1])
            for node in NODES:
                for name, port in (("CONTROLLER", 9093), ("SECURE", 9095)):
                    assert hosts.here(f"{name}://{hosts.address(node)}:{port}", node) in described
            roll(hosts, steps[2])
            for node in NODES:
                hosts.wait_status(node, "plaintext_peers", [])
                assert hosts.status(node)["links"] == "SSL"
            assert second[1] == []
            appending.wait_progress()
            moving.enter_context(moved)
            assert "LeaderId" in hosts.run(third[1])
        roll(hosts, steps[3])
        for node in NODES:
            seen = hosts.status(node)
            assert (seen["links"], seen["plaintext_connections"]) == ("SSL", 0)
            assert [each["name"] for each in seen["listeners"]] == ["SECURE"]
            assert seen["warnings"] == []
        moved.wait_progress()
        # And back, the same way.
        roll(hosts, steps[2])
        with back:
            back.wait_progress()
            moving.close()
            roll(hosts, steps[1])
            roll(hosts, steps[0])
            back.wait_progress()
    found = values_of(plain, None)
    for load in (appending, moved, back):
        assert load.failures == []
        assert load.appended
        assert load.appended.items() <= found.items()
