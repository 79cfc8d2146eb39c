"""Headless Chromium for tests of the page: started here, driven by its DevTools protocol over a pipe.

Needs nothing but the browser (Debian, Ubuntu: `apt install chromium`). Source of the protocol:
https://chromedevtools.github.io/devtools-protocol/ (--remote-debugging-pipe: JSON, a zero byte behind each
message, file descriptors 3 and 4).
"""

from __future__ import annotations

import base64
import ctypes
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
PROFILE = "profile"
ANSWER_S = 30.0
POLL_S = 0.05

# Without the last ones it asks hosts of its maker at every start.
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
_LAUNCH = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4);"
    "os.execv(sys.argv[3], sys.argv[3:])"
)
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


def find_chromium() -> str | None:
    """Path of the browser, None if there is none."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def missing_chromium() -> str:
    """Why no browser test can run, and what to do; empty if they can."""
    if find_chromium() is not None:
        return ""
    why = os.environ.get("NO_CHROMIUM", "install it (Debian, Ubuntu: apt install chromium)")
    return f"there is no Chromium: {why}"


class Tab:
    """One page, with a size of its own."""

    def __init__(self, browser: Browser, target: str, session: str) -> None:
        self._browser = browser
        self._target = target
        self._session = session
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")

    def show(
        self, *, width: int, height: int = 800, dark: bool = False, phone: bool = False
    ) -> None:
        """The window's size in CSS pixels, and what the user prefers."""
        self._call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=2 if phone else 1,
            mobile=phone,
        )
        self._call("Emulation.setScrollbarsHidden", hidden=True)
        scheme = "dark" if dark else "light"
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self._call("Emulation.setEmulatedMedia", features=features)

    def close(self) -> None:
        """The page is gone, and what it told is forgotten."""
        self._browser.call("Target.closeTarget", {"targetId": self._target})
        events = self._browser.events
        events[:] = [event for event in events if event.get("sessionId") != self._session]

    def beside(self) -> Tab:
        """Another tab of the same window, which is seen instead of this one."""
        other = self._browser.open()
        other.see()
        return other

    def see(self) -> None:
        """From now on this tab is the one that is seen, and no other is."""
        self._call("Page.bringToFront")

    def go(self, url: str) -> None:
        """Begin to load a page, and see it."""
        self.see()
        answer = self._call("Page.navigate", url=url)
        assert "errorText" not in answer, f"{url}: {answer['errorText']}"

    def trust_everybody(self) -> None:
        """Take any server's certificate, as a person does who clicks the warning away."""
        self._call("Security.setIgnoreCertificateErrors", ignore=True)

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression; promises are awaited."""
        answer = self._call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, f"{expression}: {answer['exceptionDetails']}"
        return answer["result"].get("value")

    def text(self, selector: str = "body") -> str:
        """What is to be read in the first element of this selector; empty if there is none."""
        quoted = json.dumps(selector)
        return str(self.evaluate(f"document.querySelector({quoted})?.innerText ?? ''"))

    def wait_text(self, wanted: str, selector: str = "body", timeout_s: float = 60.0) -> None:
        """Return when the element holds this text."""
        deadline = time.monotonic() + timeout_s
        while wanted not in (found := self.text(selector)):
            if time.monotonic() > deadline:
                raise AssertionError(
                    f"waited {timeout_s} s for {wanted!r} in {selector}, which says\n{found}"
                )
            time.sleep(POLL_S)

    def press(self, key: str) -> None:
        """A key goes down and up, at whatever has the focus."""
        text = {"Enter": "\r", "Space": " "}.get(key, "")
        name = " " if key == "Space" else key
        code = {"Enter": 13, "Space": 32, "Tab": 9}[key]
        for kind in ("keyDown", "keyUp"):
            self._call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=name,
                code=key,
                windowsVirtualKeyCode=code,
                text=text if kind == "keyDown" else "",
            )

    def roles(self) -> list[tuple[str, str]]:
        """Roles and names of what a screen reader is told, in the page's order."""
        nodes = self._call("Accessibility.getFullAXTree")["nodes"]
        return [
            (node["role"]["value"], node.get("name", {}).get("value", ""))
            for node in nodes
            if not node["ignored"]
        ]

    def screenshot(self, path: Path, *, whole: bool = True) -> None:
        """A PNG of the window, or of the whole page."""
        answer = self._call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(answer["data"]))

    def complaints(self) -> list[str]:
        """Exceptions, refusals by policy, and errors of the console, since the tab was opened."""
        self.evaluate("0")
        found = []
        for event in self._browser.events:
            if event.get("sessionId") != self._session:
                continue
            params = event["params"]
            if event["method"] == "Runtime.exceptionThrown":
                found.append(json.dumps(params["exceptionDetails"]))
            elif event["method"] == "Log.entryAdded" and params["entry"]["level"] == "error":
                found.append(params["entry"]["text"])
        return found

    def requested(self) -> list[str]:
        """The URLs of everything that was asked for."""
        self.evaluate("0")
        return [
            event["params"]["request"]["url"]
            for event in self._browser.events
            if event.get("sessionId") == self._session
            and event["method"] == "Network.requestWillBeSent"
        ]

    def _call(self, method: str, **params: Any) -> dict[str, Any]:
        return self._browser.call(method, params, self._session)


class Browser:
    """A process of its own, with an empty profile. Use it by `running_browser`."""

    def __init__(self, process: subprocess.Popen[bytes], to: int, back: int) -> None:
        self._process = process
        self._to = to
        self._back = back
        self._buffer = b""
        self._count = 0
        self.events: list[dict[str, Any]] = []
        """What the browser told without being asked, in order."""

    def open(self) -> Tab:
        """An empty page."""
        target = self.call("Target.createTarget", {"url": "about:blank"})["targetId"]
        params = {"targetId": target, "flatten": True}
        return Tab(self, target, self.call("Target.attachToTarget", params)["sessionId"])

    def call(
        self, method: str, params: dict[str, Any], session: str | None = None
    ) -> dict[str, Any]:
        """The result of a command. Fails if there is none."""
        self._count += 1
        message: dict[str, Any] = {"id": self._count, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + ANSWER_S
        while True:
            answer = self._next(deadline)
            if answer.get("id") == self._count:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def _next(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._back], [], [], left)[0]:
                raise AssertionError(f"the browser did not answer in {ANSWER_S} s")
            data = os.read(self._back, 1 << 16)
            assert data, f"the browser ended, exit code {self._process.poll()}"
            self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found


@contextmanager
def running_browser(folder: Path, home: Path | None = None) -> Iterator[Browser]:
    """A browser with its profile and its log below this folder; it ends with the block.

    In the folder `home`, if not in the user's own, are certificates that it may show.
    """
    chromium = find_chromium()
    assert chromium is not None, missing_chromium()
    folder.mkdir(parents=True, exist_ok=True)
    (there_in, here_out), (here_in, there_out) = _pipe(), _pipe()
    command = [sys.executable, "-c", _LAUNCH, str(there_in), str(there_out), chromium]
    command += [*_FLAGS, "--remote-debugging-pipe", f"--user-data-dir={folder / PROFILE}"]
    with (folder / "browser.log").open("wb") as log:
        process = subprocess.Popen(
            command,
            pass_fds=(there_in, there_out),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, **({} if home is None else {"HOME": str(home)})},
            preexec_fn=_die_with_parent,
        )
    os.close(there_in)
    os.close(there_out)
    try:
        yield Browser(process, here_out, here_in)
    finally:
        process.terminate()
        process.wait(20)
        os.close(here_out)
        os.close(here_in)


def _pipe() -> tuple[int, int]:
    """Reader and writer, with numbers that are in nobody's way."""
    pair = os.pipe()
    high = [fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, 10) for number in pair]
    for number in pair:
        os.close(number)
    return high[0], high[1]


def _die_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
