"""Programs that use the library without asyncio, and that fork or end: as processes of their own."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.quorumd.conftest import QuorumThread

FORKED = """
import os, sys
from quorumd.sync import QuorumClient
with QuorumClient(sys.argv[1]) as client:
    assert client.list_offsets(-1).offset == 0
    child = os.fork()
    if not child:
        try:
            client.list_offsets(-1)
        except RuntimeError as error:
            assert "forked: make another one in the child" in str(error), error
        with QuorumClient(sys.argv[1]) as own:
            assert own.list_offsets(-1).offset == 0
        client.close()
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert client.list_offsets(-1).offset == 0
"""


@pytest.mark.long
def test_a_client_does_not_survive_a_fork_and_says_so(quorum: QuorumThread) -> None:
    command = [sys.executable, "-W", "error", "-c", FORKED, quorum.quorum.addresses]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


LEFT_OPEN = """
import sys
from quorumd import Record
from quorumd.sync import QuorumClient
client = QuorumClient(sys.argv[1])
client.append([Record(value=b"a"), Record(value=b"b")])
records = client.follow(from_offset=0) if sys.argv[2] == "follow" else client.read(0, 9)
next(records)
raise ValueError("an error of the program")
"""


@pytest.mark.long
@pytest.mark.parametrize("call", ["follow", "read"])
def test_a_program_that_ends_in_the_middle_of_reading_ends(quorum: QuorumThread, call: str) -> None:
    """Its client is open, and what it iterates over is there till the end."""
    command = [sys.executable, "-c", LEFT_OPEN, quorum.quorum.addresses, call]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr.endswith("ValueError: an error of the program\n")


STILL_IN_WITH = """
import sys
from contextlib import contextmanager
from quorumd.sync import Election, KeyValueView, Lock, QuorumClient, Registration

MADE = {
    "view": KeyValueView,
    "lock": lambda client: Lock(client, "a"),
    "election": lambda client: Election(client, "a"),
    "registration": lambda client: Registration(client, "a"),
    "transaction": lambda client: transaction(client),
}

@contextmanager
def transaction(client):
    with KeyValueView(client) as view, view.transaction() as t:
        yield t

def endless():
    with QuorumClient(sys.argv[1]) as client, MADE[sys.argv[2]](client):
        while True:
            yield

feed = endless()
next(feed)
raise ValueError("an error of the program")
"""


@pytest.mark.long
@pytest.mark.parametrize("what", ["view", "lock", "election", "registration", "transaction"])
def test_a_program_ends_that_has_something_open_in_a_generator(
    quorum: QuorumThread, what: str
) -> None:
    """The interpreter closes the generator when the client's thread has stopped."""
    command = [sys.executable, "-c", STILL_IN_WITH, quorum.quorum.addresses, what]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr.endswith("ValueError: an error of the program\n")


CALLED_AT_THE_END = """
import sys
from functools import partial
from quorumd.sync import Lock, QuorumClient

class Held:
    def __init__(self):
        self.make = partial(QuorumClient, sys.argv[1])
        self.lock = Lock(self.make(), "a")
        self.lock.acquire()
        self.at_the_end = self.lock.release if sys.argv[2] == "release" else self.make

    def __del__(self):
        self.at_the_end()

held = Held()
"""


@pytest.mark.long
@pytest.mark.parametrize("what", ["release", "make"])
def test_a_call_while_the_interpreter_ends_says_so(quorum: QuorumThread, what: str) -> None:
    command = [sys.executable, "-c", CALLED_AT_THE_END, quorum.quorum.addresses, what]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0
    assert "quorumd.sync was called while the interpreter ends" in done.stderr
