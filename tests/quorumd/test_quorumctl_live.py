"""Keys on a quorum of real processes that are killed: nothing put is lost, doubled or unseen."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from quorumd import KeyValueView, QuorumClient, Record
from tests.quorumd.conftest import Done
from tests.quorumd.running import COMMAND, started
from tests.support.live_cluster import Cluster

pytestmark = pytest.mark.usefixtures("nodes")

Run = Callable[..., Done]


def kill_leader(cluster: Cluster) -> int:
    leader = cluster.wait_leader()
    cluster.kill(leader)
    return leader


def values_of(cluster: Cluster, key: bytes) -> list[bytes | None]:
    """What was appended under this key, on the disk of a node that runs."""
    cluster.wait_converged()
    return [r.value for r in cluster.records(cluster.running()[0]) if r.key == key]


def test_a_key_with_any_bytes_is_put_read_and_deleted(quorumctl: Run) -> None:
    key, value = "a\tb\nc\x1b", "\udcff\n\x7f" + "v" * 1000
    offset = quorumctl("put", key, value).out.strip()
    done = quorumctl("get", key, "--min-offset", offset, "-o", "raw")
    # What is no UTF-8 came back as it was; the pipe's reader shows it so.
    assert done == Done(0, "\ufffd\n\x7f" + "v" * 1000 + "\n", "")
    assert quorumctl("get", "--prefix", "a\t").out.startswith("a\\tb\\nc\\x1b\t\\xff\\n\\x7fvvv")
    assert quorumctl("delete", key).code == 0
    assert quorumctl("get", key).code == 1


def test_a_leader_that_is_killed_in_the_middle_of_a_put_loses_and_doubles_nothing(
    cluster: Cluster,
) -> None:
    count = 4000
    lines = [b"put-%d\tvalue %d\n" % (number % 100, number) for number in range(count)]
    with started("put", "--file", "-") as process:
        assert process.stdin is not None
        before = cluster.status(cluster.wait_leader())["high_watermark"]
        process.stdin.write(b"".join(lines[: count // 2]))
        process.stdin.flush()
        cluster.wait_for(
            lambda: cluster.status(cluster.wait_leader())["high_watermark"] > before + 500,
            "a part of the input committed",
        )
        kill_leader(cluster)
        process.stdin.write(b"".join(lines[count // 2 :]))
        out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, b"")
    cluster.wait_converged()
    put = [r for r in cluster.records(cluster.running()[0]) if (r.key or b"").startswith(b"put-")]
    assert [b"%s\t%s\n" % (r.key or b"", r.value or b"") for r in put] == lines
    assert int(out) == put[-1].offset


def test_a_watch_sees_every_change_once_while_leaders_are_killed(cluster: Cluster) -> None:
    rounds, puts = 3, 20
    seen: list[bytes] = []
    asyncio.run(_append_one_by_one(cluster, [Record(key=b"watched/0", value=b"ready")]))
    with started("watch", "--prefix", "watched/") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().endswith(b"\twatched/0\tready\n")
        number = 0
        for _ in range(rounds):
            numbers = range(number, number + puts)
            records = [Record(key=b"watched/%d" % (n % 7), value=b"%d" % n) for n in numbers]
            number += puts
            asyncio.run(_append_one_by_one(cluster, records[: puts // 2]))
            killed = kill_leader(cluster)
            asyncio.run(_append_one_by_one(cluster, records[puts // 2 :]))
            seen += [process.stdout.readline() for _ in range(puts)]
            assert b"leads since epoch" in process.stderr.readline()
            cluster.start(killed)
            cluster.wait_ready(killed)
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=20)[0] == b""
        assert process.returncode == 130
    cells = [line.rstrip(b"\n").split(b"\t") for line in seen]
    assert [cell[2] for cell in cells] == [b"%d" % n for n in range(rounds * puts)]
    assert [cell[1] for cell in cells] == [b"watched/%d" % (n % 7) for n in range(rounds * puts)]
    offsets = [int(cell[0]) for cell in cells]
    assert offsets == sorted(set(offsets))


async def _append_one_by_one(cluster: Cluster, records: list[Record]) -> None:
    async with QuorumClient(cluster.bootstrap, timeout_ms=20_000) as client:
        for record in records:
            await client.append([record])


def test_what_was_put_is_read_from_the_next_leader_whichever_node_is_down(
    cluster: Cluster, quorumctl: Run
) -> None:
    for number in range(3):
        killed = kill_leader(cluster)
        # The first address is dead: the others are asked.
        servers = ",".join(map(cluster.address, (killed, *cluster.running())))
        assert quorumctl("put", "-b", servers, "survivor", number).code == 0
        assert quorumctl("get", "-b", servers, "survivor", "--linearizable").out == f"{number}\n"
        cluster.start(killed)
        cluster.wait_ready(killed)


def test_without_a_majority_nothing_is_put_and_no_linearizable_read_lies(
    cluster: Cluster, quorumctl: Run
) -> None:
    assert quorumctl("put", "minority", "before").code == 0
    leader = cluster.wait_leader()
    for node in cluster.ids:
        if node != leader:
            cluster.kill(node)
    put = quorumctl("put", "minority", "after", "--timeout", "3")
    assert (put.code, put.out) == (1, "")
    assert "more than half of the voters must be up" in put.err
    read = quorumctl("get", "minority", "--linearizable", "--timeout", "1")
    assert (read.code, read.out) == (1, "")
    cluster.start()
    cluster.wait_ready(*cluster.ids)
    # Whether the put took effect was not known; now it is, and for good.
    value = quorumctl("get", "minority", "--linearizable").out
    assert value in ("before\n", "after\n")
    assert quorumctl("get", "minority", "--linearizable").out == value


def test_a_value_larger_than_a_batch_may_be_is_refused_at_once(
    cluster: Cluster, quorumctl: Run, tmp_path: Path
) -> None:
    source = tmp_path / "large"
    for size in (2 << 20, 7 << 20):
        source.write_bytes(b"large\t" + b"x" * size)
        done = quorumctl("put", "--file", source, "--timeout", "20")
        assert (done.code, done.out) == (1, "")
        assert "log.max.batch.bytes" in done.err
        assert "Nothing was acknowledged." in done.err
    source.write_bytes(b"large\t" + b"x" * (900 << 10))
    assert quorumctl("put", "--file", source).code == 0
    assert len(quorumctl("get", "large").out) == (900 << 10) + 1
    assert len(values_of(cluster, b"large")) == 1


def test_the_http_port_is_not_taken_for_the_listener(cluster: Cluster, quorumctl: Run) -> None:
    address = cluster.http_url(1, "").removeprefix("http://")
    for command in (("put", "a", "b"), ("get", "a"), ("watch",)):
        done = quorumctl(*command, "-b", address, "--timeout", "0.5")
        assert (done.code, done.out) == (1, "")
        assert f"{address}: responds in HTTP: that is not the port of a listener" in done.err
        assert "the addresses and ports are right" in done.err


def test_a_put_that_is_interrupted_says_what_is_certain(cluster: Cluster) -> None:
    with started("put", "--file", "-") as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(b"interrupted\t1\n")
        process.stdin.flush()
        cluster.wait_for(lambda: values_of(cluster, b"interrupted"), "the first line in the log")
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
        assert process.stderr.read().startswith(b"interrupted: ")


def test_a_view_and_its_own_writes_survive_kills_and_a_frozen_leader(cluster: Cluster) -> None:
    async def run() -> None:
        async with (
            QuorumClient(cluster.bootstrap, timeout_ms=20_000) as client,
            KeyValueView(client, prefix=b"view/") as view,
        ):
            for number in range(40):
                key, value = b"view/%d" % (number % 5), b"%d" % number
                if number in (10, 20):
                    kill_leader(cluster)
                elif number in (15, 25):
                    cluster.start()
                    cluster.wait_ready()
                elif number == 30:
                    cluster.suspend(cluster.wait_leader())
                (offset,) = await client.append([Record(key=key, value=value)])
                await view.wait_for(offset)
                found = view.get(key)
                assert found is not None
                assert (found.value, found.offset) == (value, offset)
            assert len(view.items()) == 5

    asyncio.run(run())


def test_scripts_read_their_own_writes(cluster: Cluster) -> None:
    script = """
        set -e
        test "$(quorumctl get counter --min-offset "$(quorumctl put counter 1)")" = 1
        test "$(quorumctl get counter --min-offset "$(quorumctl put counter 2)")" = 2
        quorumctl delete counter
        ! quorumctl get counter
    """
    done = subprocess.run(
        ["bash", "-c", script],
        env={**os.environ, "PATH": f"{COMMAND.parent}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith(b"not found: counter")


def test_the_program_in_the_document_does_what_it_says(cluster: Cluster) -> None:
    document = (Path(__file__).parents[2] / "docs/keys.md").read_text()
    section = document.partition("## Library\n")[2]
    program = textwrap.dedent(section[: section.index("\n`KeyValueView`")])
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert "b'jobs/19' b'waiting' " in done.stdout
    assert re.search(r"node \d leads since epoch \d+\n", done.stdout)
    assert done.stdout.splitlines()[-1].endswith("b'jobs/19' b'done, was running'")
