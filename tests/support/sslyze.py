"""sslyze for tests: what a scanner of its own, with OpenSSL from 1.0.2 on, finds at ports that speak TLS.

A requirement of sslyze's is older than those that quorumd is tested with: it is installed once into a folder
of its own, `.cache/sslyze` of the project.
"""

from __future__ import annotations

import fcntl
import functools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

VERSION = "6.3.1"
FETCH_TIMEOUT_S = 900
SCAN_TIMEOUT_S = 240
SCANS = (
    *("certinfo", "sslv2", "sslv3", "tlsv1", "tlsv1_1", "tlsv1_2", "tlsv1_3", "compression"),
    *("reneg", "resum", "fallback", "ems", "heartbleed", "openssl_ccs", "robot"),
)

_CACHE = Path(__file__).resolve().parents[2] / ".cache" / "sslyze"
_FOLDER = _CACHE / f"{VERSION}-{sys.implementation.cache_tag}"


class CannotFetch(Exception):
    """sslyze is not here and cannot be brought here; says why."""


@functools.cache
def sslyze() -> Path:
    """The folder that holds it, installed first if need be. Raises CannotFetch."""
    if not _FOLDER.is_dir():
        _CACHE.mkdir(parents=True, exist_ok=True)
        with (_CACHE / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not _FOLDER.is_dir():
                _fetch()
    return _FOLDER


def scan(ports: Iterable[int], trust: Path, certificate: Path, key: Path) -> dict[int, Any]:
    """What was found by each scan, by port of 127.0.0.1; the scanner shows this certificate."""
    with tempfile.TemporaryDirectory() as name:
        report = Path(name) / "report.json"
        command = [sys.executable, "-m", "sslyze", *(f"127.0.0.1:{port}" for port in ports)]
        command += [f"--{each}" for each in SCANS]
        command += ["--certinfo_ca_file", str(trust), "--cert", str(certificate), "--key", str(key)]
        command += ["--mozilla_config", "disable", "--json_out", str(report)]
        done = subprocess.run(
            command,
            env={**os.environ, "PYTHONPATH": str(sslyze())},
            capture_output=True,
            text=True,
            timeout=SCAN_TIMEOUT_S,
            check=False,
        )
        assert report.exists(), done.stdout + done.stderr
        found = json.loads(report.read_text())
    return {
        each["server_location"]["port"]: {
            name: attempt["result"]
            for name, attempt in each["scan_result"].items()
            if attempt is not None
        }
        for each in found["server_scan_results"]
    }


def _fetch() -> None:
    """Install into the folder, which is whole then or absent."""
    with tempfile.TemporaryDirectory(dir=_CACHE) as name:
        target = Path(name) / "installed"
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(target)]
        try:
            done = subprocess.run(
                [*command, f"sslyze=={VERSION}"],
                capture_output=True,
                text=True,
                timeout=FETCH_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise CannotFetch(f"pip has not installed sslyze within {FETCH_TIMEOUT_S} s") from None
        if done.returncode:
            raise CannotFetch(f"pip cannot install sslyze: {done.stderr.strip()[-300:]}")
        target.rename(_FOLDER)


if __name__ == "__main__":  # before the tests, so that no test's time limit covers the download
    try:
        print(f"sslyze: {sslyze()}")
    except CannotFetch as error:
        print(f"sslyze tests: {error}")
