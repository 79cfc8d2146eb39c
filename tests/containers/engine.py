"""A Docker engine for the container drill: the one that runs, else one started here and ended again.

An engine started here keeps its images under `.cache/containers`, and touches neither the firewall nor
the routing of this machine: containers reach each other over their bridge, this machine reaches them
over published ports, and they reach nothing else.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# runc takes no path with a symbolic link in it.
CACHE = (ROOT / ".cache").resolve() / "containers"
BASE = "python:3.11-slim"
BASE_MADE_HERE = "quorumd-base:bookworm"
COMMAND_TIMEOUT_S = 300
PULL_TIMEOUT_S = 300
START_TIMEOUT_S = 30

_DEBIAN = "http://deb.debian.org/debian"
_PACKAGES = "ca-certificates,python3,python3-venv"
_CERTIFICATES = Path("etc/ssl/certs/ca-certificates.crt")
# What Debian's own small images leave out, too.
_LEFT_OUT = (
    "./dev/*",
    "./usr/share/doc/*",
    "./usr/share/info/*",
    "./usr/share/locale/*",
    "./usr/share/man/*",
    "./var/cache/apt/*",
    "./var/lib/apt/lists/*",
    "./var/log/*",
)


class NoEngine(Exception):
    """No containers can be run here; says why, and what to do."""


class Failed(Exception):
    """A command of the engine failed; says which, and with what."""


class Engine:
    """Runs `docker` and compose against one engine."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = dict(environ)
        self.compose_command = self._find_compose()

    def run(
        self, *command: str, timeout_s: float = COMMAND_TIMEOUT_S, is_checked: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end. Raises Failed if it fails and is checked, or takes too long."""
        try:
            done = subprocess.run(
                command,
                cwd=ROOT,
                env=self._environ,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise Failed(f"{' '.join(command)}: no end within {timeout_s} s") from None
        if is_checked and done.returncode:
            said = (done.stdout + done.stderr)[-4000:]
            raise Failed(f"{' '.join(command)}: exit code {done.returncode}\n{said}")
        return done

    def docker(self, *arguments: str) -> str:
        """What `docker` prints. Raises Failed."""
        return self.run("docker", *arguments).stdout.strip()

    def has_image(self, name: str) -> bool:
        return not self.run("docker", "image", "inspect", name, is_checked=False).returncode

    def can_have_image(self, name: str) -> bool:
        """Whether it is here, pulled if need be."""
        if self.has_image(name):
            return True
        try:
            self.run("docker", "pull", name, timeout_s=PULL_TIMEOUT_S)
        except Failed:
            return False
        return True

    def _find_compose(self) -> tuple[str, ...]:
        for command in (("docker", "compose"), ("docker-compose",)):
            if shutil.which(command[0]) is not None:
                done = self.run(*command, "version", is_checked=False)
                if not done.returncode:
                    return command
        raise NoEngine("docker compose is missing (Debian: apt install docker-compose)")


@contextmanager
def engine() -> Iterator[Engine]:
    """The engine that `docker` talks to, else one of our own. Raises NoEngine."""
    if shutil.which("docker") is None:
        raise NoEngine("docker is missing (Debian: apt install docker.io docker-compose)")
    if not subprocess.run(["docker", "info"], capture_output=True, check=False).returncode:
        yield Engine(os.environ)
        return
    if shutil.which("dockerd") is None or os.geteuid() != 0:
        raise NoEngine(
            "no Docker engine answers, and none can be started here: that needs root and dockerd "
            "(Debian: apt install docker.io). Start one, or name it with DOCKER_HOST"
        )
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / ".lock").open("w") as lock, tempfile.TemporaryDirectory(prefix="quorumd-") as run:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with _own_engine(Path(run)) as address:
            yield Engine({**os.environ, "DOCKER_HOST": address})


@contextmanager
def _own_engine(run: Path) -> Iterator[str]:
    address = f"unix://{run}/docker.sock"
    command = ["dockerd", "--host", address, "--data-root", str(CACHE / "docker")]
    command += ["--exec-root", str(run / "exec"), "--pidfile", str(run / "pid")]
    command += ["--iptables=false", "--ip6tables=false", "--ip-forward=false", "--ip-masq=false"]
    command += ["--bridge=none"]
    log_path = CACHE / "dockerd.log"
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    try:
        _wait_answers(process, address, log_path)
        yield address
    finally:
        process.terminate()
        process.wait()
        for folder in (run, CACHE):
            _unmount_below(folder)


def _unmount_below(folder: Path) -> None:
    """What the engine leaves mounted, such as the network namespace of builds, and its own root."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        if line.split()[1].startswith(f"{folder}/"):
            subprocess.run(["umount", line.split()[1]], check=True)


def _wait_answers(process: subprocess.Popen[bytes], address: str, log_path: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    ask = ["docker", "--host", address, "info"]
    while subprocess.run(ask, capture_output=True, check=False).returncode:
        if process.poll() is not None or time.monotonic() > deadline:
            last = "\n".join(log_path.read_text(errors="replace").splitlines()[-5:])
            raise NoEngine(f"dockerd does not start here, see {log_path}:\n{last}")
        time.sleep(0.2)


# -- the base image


def base_image(docker: Engine) -> str:
    """The image to build on: the one of the Dockerfile, else Debian bookworm, made here once.

    Raises NoEngine if neither can be had.
    """
    if docker.has_image(BASE_MADE_HERE):
        return BASE_MADE_HERE
    if docker.can_have_image(BASE):
        return BASE
    if shutil.which("debootstrap") is None or os.geteuid() != 0:
        raise NoEngine(
            f"{BASE} cannot be pulled, and a base image cannot be made: that needs root and debootstrap"
        )
    print(f"{BASE} cannot be pulled: making {BASE_MADE_HERE} with debootstrap", flush=True)
    # Not below /tmp, which may be mounted without devices or programs.
    with tempfile.TemporaryDirectory(dir=CACHE.parent, prefix="base-") as folder:
        _make_base(docker, Path(folder) / "root")
    return BASE_MADE_HERE


def _make_base(docker: Engine, root: Path) -> None:
    bootstrap = ["debootstrap", "--variant=minbase", f"--include={_PACKAGES}", "bookworm"]
    docker.run(*bootstrap, str(root), _DEBIAN, timeout_s=1200)
    # Where PyPI is reached through a proxy with a CA of its own, this machine knows it.
    if (Path("/") / _CERTIFICATES).exists():
        shutil.copyfile(Path("/") / _CERTIFICATES, root / _CERTIFICATES)
    archive = root.with_suffix(".tar")
    left_out: Sequence[str] = [f"--exclude={pattern}" for pattern in _LEFT_OUT]
    docker.run("tar", "-C", str(root), "-cf", str(archive), *left_out, ".")
    docker.docker("import", str(archive), BASE_MADE_HERE)
