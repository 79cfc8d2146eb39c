"""A command that is held: it begins without holding up the event loop, which renews what it runs under."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
from pathlib import Path

import pytest

from quorumd.cli.held_command import HeldCommand

pytestmark = pytest.mark.live


def children() -> set[int]:
    return {
        int(pid)
        for task in Path(f"/proc/{os.getpid()}/task").iterdir()
        for pid in (task / "children").read_text().split()
    }


def refuse_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the kernel does where a command has become another user."""

    def refuse(pid: int, number: int) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "kill", refuse)
    monkeypatch.setattr(os, "killpg", refuse)


def test_the_event_loop_goes_on_while_a_command_does_not_begin() -> None:
    async def run() -> None:
        others = children()
        with HeldCommand(["sh", "-c", "exit $CODE"]) as command:
            (pid,) = children() - others
            os.kill(pid, signal.SIGSTOP)
            command.start("CODE", "7")
            ended = asyncio.ensure_future(command.wait())
            done, _ = await asyncio.wait({ended}, timeout=0.2)
            assert not done
            os.kill(pid, signal.SIGCONT)
            assert await ended == 7

    asyncio.run(run())


def test_one_that_does_not_begin_can_be_ended() -> None:
    async def run() -> None:
        others = children()
        with HeldCommand(["sleep", "100"]) as command:
            (pid,) = children() - others
            os.kill(pid, signal.SIGSTOP)
            command.start("A", "b")
            assert await command.end(0.1) == 128 + signal.SIGTERM

    asyncio.run(run())


def test_one_that_no_signal_reaches_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    refuse_signals(monkeypatch)
    os.mkfifo(fifo := tmp_path / "fifo")

    async def run() -> None:
        with HeldCommand(["sh", "-c", f"read line <{fifo}; exit 7"]) as command:
            command.start("A", "b")
            command.send(signal.SIGTERM)
            command.send(signal.SIGWINCH)
            ending = asyncio.ensure_future(command.end(0.1))
            said = ""
            while "still runs" not in said:
                await asyncio.sleep(0.01)
                said += capfd.readouterr().err
            fifo.write_text("end\n")
            assert await ending == 7
            assert said.count("SIGTERM does not reach sh") == 1
            assert said.count("SIGWINCH does not reach sh") == 1

    asyncio.run(run())


@pytest.mark.parametrize("name", ["", "/nowhere/at/all", "/etc/passwd"])
def test_one_that_cannot_be_executed_says_so(name: str) -> None:
    async def run() -> None:
        with HeldCommand([name]) as command:
            command.start("A", "b")
            with pytest.raises(OSError, match=r"No such file|Permission denied"):
                await command.wait()

    asyncio.run(run())
