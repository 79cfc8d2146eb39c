"""Which Java is taken, and what is said if none will do. The Javas are scripts that talk like one."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from quorumd.pipeline import java as module
from quorumd.pipeline.errors import JavaMissing
from quorumd.pipeline.java import find_java, use_java

MODULE = "--add-modules=jdk.incubator.vector"


def make_java(folder: Path, version: str, *, has_module: bool = True) -> Path:
    """A bin/java that names its version, and refuses the module if it has none; returns its home."""
    refuse = "" if has_module else f'[ "$1" = {MODULE} ] && echo "no module" >&2 && exit 1\n'
    path = folder / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(
        f'#!/bin/sh\n{refuse}case "$*" in *-version*) echo \'openjdk version "{version}"\' >&2;; '
        f'*) for a; do echo "<$a>"; done;; esac\n'
    )
    path.chmod(0o755)
    return folder


@pytest.fixture(autouse=True)
def _no_packaged_java(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None)


def test_java_home_comes_before_the_path(tmp_path: Path) -> None:
    home, other = make_java(tmp_path / "home", "17.0.1"), make_java(tmp_path / "other", "21.0.1")
    environ = {"JAVA_HOME": str(home), "PATH": f"{other}/bin"}
    found = use_java(environ)
    assert (found.version, found.origin) == (17, "JAVA_HOME")
    assert environ["JAVA_HOME"] == str(home)


@pytest.mark.parametrize("old", ["1.8.0_292", "11.0.2"])
def test_an_old_java_home_is_passed_over_for_a_newer_java_on_the_path(
    tmp_path: Path, old: str
) -> None:
    home, other = make_java(tmp_path / "home", old), make_java(tmp_path / "other", "21.0.1")
    environ = {"JAVA_HOME": str(home), "PATH": f"{other}/bin"}
    assert use_java(environ).origin == "PATH"
    assert "JAVA_HOME" not in environ, "Spark's launcher would take the old one"


def test_without_a_java_the_message_says_what_was_found_and_what_to_do(tmp_path: Path) -> None:
    old = make_java(tmp_path / "old", "11.0.2")
    with pytest.raises(JavaMissing) as caught:
        find_java({"JAVA_HOME": str(tmp_path / "gone"), "PATH": f"{old}/bin"})
    said = str(caught.value)
    assert "JAVA_HOME: there is no bin/java" in said
    assert "PATH: Java 11" in said
    assert "apt install" in said
    assert "pip install" in said
    with pytest.raises(JavaMissing, match="there is none"):
        find_java({"PATH": str(tmp_path)})


def test_a_java_that_does_not_start_is_said_to_be_so(tmp_path: Path) -> None:
    broken = tmp_path / "bin" / "java"
    broken.parent.mkdir()
    broken.write_text("#!/bin/sh\necho 'cannot map memory' >&2\nexit 1\n")
    broken.chmod(0o755)
    with pytest.raises(JavaMissing, match="does not start: cannot map memory"):
        find_java({"PATH": str(broken.parent)})


def test_a_java_without_the_module_gets_a_wrapper_that_leaves_only_that_out(
    tmp_path: Path,
) -> None:
    home = make_java(tmp_path / "it's a home", "21.0.8", has_module=False)
    environ = {"JAVA_HOME": str(home), "XDG_CACHE_HOME": str(tmp_path / "cache"), "PATH": ""}
    assert not use_java(environ).has_module
    wrapper = Path(environ["JAVA_HOME"], "bin", "java")
    assert wrapper.is_relative_to(tmp_path / "cache")
    arguments = ["-Dx=a b", MODULE, "", "$HOME", MODULE, "last*"]
    done = subprocess.run([wrapper, *arguments], capture_output=True, text=True, check=True)
    assert done.stdout == "<-Dx=a b>\n<>\n<$HOME>\n<last*>\n"


def test_a_wrapper_is_made_once_and_repaired(tmp_path: Path) -> None:
    home = make_java(tmp_path / "home", "21.0.8", has_module=False)
    given = {"JAVA_HOME": str(home), "XDG_CACHE_HOME": str(tmp_path / "cache"), "PATH": ""}
    wrappers = []
    for _ in range(2):
        environ = dict(given)
        use_java(environ)
        wrappers.append(Path(environ["JAVA_HOME"], "bin", "java"))
    assert wrappers[0] == wrappers[1]
    made = wrappers[0].stat().st_mtime_ns
    text = wrappers[0].read_text()
    wrappers[0].write_text("half")
    use_java(dict(given))
    assert wrappers[0].read_text() == text
    assert wrappers[0].stat().st_mtime_ns != made
    assert os.listdir(wrappers[0].parent) == ["java"], "nothing half-written stays"


def test_a_wrapper_that_cannot_be_written_is_said_so(tmp_path: Path) -> None:
    home = make_java(tmp_path / "home", "21.0.8", has_module=False)
    (tmp_path / "file").write_text("")
    environ = {"JAVA_HOME": str(home), "XDG_CACHE_HOME": str(tmp_path / "file"), "PATH": ""}
    with pytest.raises(JavaMissing, match="XDG_CACHE_HOME"):
        use_java(environ)
