"""One real Apache Kafka KRaft controller on the loopback, for tests that ask it or read its log."""

from __future__ import annotations

import ctypes
import functools
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.support.authority import Authority
from tests.support.kafka_jars import KAFKA_VERSION, SERVER, java_command, run_java
from tests.support.kafka_tools import run_tool
from tests.support.ports import free_port

CLUSTER_ID = "cXVvcnVtZC10ZXN0LTAwMQ"
START_TIMEOUT_S = 60
STOP_TIMEOUT_S = 20

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


class KafkaController:
    """A formatted folder and the process that serves it; may be stopped and started again.

    `port` is the controller listener's; its name is CONTROLLER. `extra` are further lines of the
    properties file.
    """

    def __init__(
        self, folder: Path, *, node_id: int = 1, extra: Mapping[str, str] | None = None
    ) -> None:
        self.folder = folder
        self.node_id = node_id
        self.port = free_port()
        self.bootstrap_servers = self.address
        self.extra = dict(extra or {})
        self.version = KAFKA_VERSION
        self.java_options: tuple[str, ...] = ()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """host:port, as --bootstrap-controller takes it."""
        return f"127.0.0.1:{self.port}"

    @property
    def data_folder(self) -> Path:
        """The folder with meta.properties."""
        return self.folder / "data"

    @property
    def log_folder(self) -> Path:
        """The folder of the metadata log's segments."""
        return self.data_folder / "__cluster_metadata-0"

    @property
    def output(self) -> Path:
        """What the process has written to stdout and stderr."""
        return self.folder / "output.log"

    @property
    def is_running(self) -> bool:
        """Its process was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    def format(self, *more: str, voters: str | None = None) -> None:
        """Prepares the folder, with `more` arguments of the tool: as a new quorum of one, or of `voters`.

        An empty text: `extra` has controller.quorum.voters, which names them. Raises RuntimeError with the
        tool's output.
        """
        self.write_properties()
        is_newest = self.version == KAFKA_VERSION
        run = run_tool if is_newest else functools.partial(run_java, version=self.version)
        done = run(
            "kafka.tools.StorageTool",
            *("format", "-t", CLUSTER_ID, "-c", str(self._properties_file)),
            *(["-s"] if voters is None else ["-I", voters] if voters else []),
            *more,
        )
        if done.returncode:
            raise RuntimeError(f"StorageTool format failed: {done.stdout}{done.stderr}")

    def write_properties(self) -> None:
        """The file that it is configured with."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._properties_file.write_text(self._properties())

    def start(self) -> None:
        """Returns when the port accepts connections. Raises RuntimeError if it does not."""
        self.launch()
        self.wait_open()

    def launch(self) -> None:
        """Starts the process, without waiting for anything."""
        command = java_command(
            SERVER,
            str(self._properties_file),
            properties={"kafka.test.level": "info", "kafka.logs.dir": str(self.folder)},
            version=self.version,
        )
        command[1:1] = self.java_options
        with self.output.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self.folder,
                preexec_fn=_die_with_parent,
            )

    def wait_open(self) -> None:
        """Returns when the port accepts connections. Raises RuntimeError if it does not."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._accepts_connections():
            if not self.is_running or time.monotonic() > deadline:
                tail = self.output.read_text(errors="replace")[-3000:]
                self.kill()
                raise RuntimeError(f"the Kafka controller did not start: {tail}")
            time.sleep(0.05)

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """SIGTERM, and SIGKILL if that takes too long: a controller alone cannot hand over."""
        self._end(signal.SIGTERM, timeout_s)

    def kill(self) -> None:
        """SIGKILL: its active segment stays as it is, zeros behind the data included."""
        self._end(signal.SIGKILL)

    def suspend(self) -> None:
        """SIGSTOP."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None, "it runs"
        self._process.send_signal(number)

    def _end(self, signal_number: signal.Signals, timeout_s: float = STOP_TIMEOUT_S) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(signal_number)
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    @property
    def _properties_file(self) -> Path:
        return self.folder / "controller.properties"

    def _properties(self) -> str:
        lines = {
            "process.roles": "controller",
            "node.id": str(self.node_id),
            "listeners": f"CONTROLLER://{self.address}",
            "advertised.listeners": f"CONTROLLER://{self.address}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT",
            "controller.quorum.bootstrap.servers": self.bootstrap_servers,
            "log.dirs": str(self.data_folder),
            **self.extra,
        }
        return "".join(f"{key}={value}\n" for key, value in lines.items())

    def _accepts_connections(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        except OSError:
            return False
        return True


@contextmanager
def running_controller(
    folder: Path, *, node_id: int = 1, extra: Mapping[str, str] | None = None
) -> Iterator[KafkaController]:
    """A formatted and started controller; whatever is left of it at the end is killed."""
    controller = KafkaController(folder, node_id=node_id, extra=extra)
    controller.format()
    try:
        controller.start()
        yield controller
    finally:
        controller.kill()


def pem_keys(authority: Authority, name: str) -> dict[str, str]:
    """Keys of a Kafka process whose listeners with TLS ask for certificates (KIP-651)."""
    return {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(authority.store(name)),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority.trust),
        "ssl.client.auth": "required",
    }


def as_kafka_configures_it(directory: Path, node_id: int, address: str, folder: Path) -> Path:
    """A file as Kafka's tools read it, for a node of quorumd with this storage.dir and this address."""
    path = folder / "controller.properties"
    path.write_text(
        f"process.roles=controller\nnode.id={node_id}\nlog.dirs={directory}\n"
        f"listeners=CONTROLLER://{address}\ncontroller.listener.names=CONTROLLER\n"
        "listener.security.protocol.map=CONTROLLER:PLAINTEXT\n"
        f"controller.quorum.bootstrap.servers={address}\n"
    )
    return path


def _die_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
