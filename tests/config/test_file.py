"""A file that is no flat YAML mapping is refused with the line and the reason; the example loads."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quorumd.config.declaration import Key
from quorumd.config.keys import KEYS
from quorumd.config.load import ConfigError, load
from tests.support.config_files import GOOD, Write, refused

EXAMPLE = Path(__file__).parents[2] / "config" / "controller.example.yaml"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (
            b"- node.id\n",
            ":1: the file is not a mapping of keys to values: "
            "expected lines of the form 'key: value'",
        ),
        (
            b"node.id=1\nlisteners=x\n",
            ":1: the file is not a mapping of keys to values: "
            "expected lines of the form 'key: value'",
        ),
        (
            b"node.id: 1\n\tstorage.dir: /d\n",
            ":2: there is a tab here: YAML takes only spaces around keys and values",
        ),
        (
            b"node.id:\n\t1\n",
            ":2: there is a tab here: YAML takes only spaces around keys and values",
        ),
        (
            b"node.id: 1\n---\nnode.id: 2\n",
            ":2: a second document begins here: the file must hold one ('---' at most at the top)",
        ),
        (
            b"node.id: 1\nstorage.dir: [\n",
            ":3: this is not YAML (while parsing a flow node, expected the node content, but found "
            "'<stream end>'): expected lines of the form 'key: value'; a value that begins with a bracket, "
            "as an IPv6 address, is written in quotes",
        ),
        (
            b"node.id: 1\nstorage.dir: a: b\n",
            ":2: this is not YAML (mapping values are not allowed here): "
            "expected lines of the form 'key: value'",
        ),
        (
            b"node.id: 1\nlisteners: *other\n",
            ":2: a value that begins with * is put into quotes: YAML takes it for the name of "
            "another",
        ),
        (b"node.id: 1\nname: \xff\xfe\n", ":2: this is not UTF-8 text: is it the right file?"),
        (b"#" * (2 << 20), ": the file is larger than 1048576 bytes: is it the right one?"),
    ],
)
def test_a_file_that_is_no_mapping_is_refused(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "controller.yaml"
    path.write_bytes(content)
    assert refused(path) == [f"controller.yaml{problem}"]


@pytest.mark.long
@pytest.mark.parametrize("content", ["\0", "[" * 100_000, "a: &a [*a]\n? {x: *a}\n: 1\n"])
def test_hostile_yaml_is_refused_and_nothing_else(tmp_path: Path, content: str) -> None:
    path = tmp_path / "controller.yaml"
    path.write_text(content)
    assert refused(path)


FRAGMENTS = [
    *KEYS,
    *GOOD.values(),
    ": ",
    "\n",
    ",",
    "[",
    "]",
    "{",
    "}",
    "- ",
    "&a ",
    "*a",
    "!!int ",
]


@pytest.mark.long
@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=4), max_size=30).map("".join))
def test_any_file_loads_or_is_refused_and_nothing_else(text: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "controller.yaml")
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        with contextlib.suppress(ConfigError):
            load(path, {})


def test_a_missing_file_and_a_folder_are_named_with_the_option(tmp_path: Path) -> None:
    path = tmp_path / "controller.yaml"
    assert refused(path) == [
        "controller.yaml: there is no such file: name the configuration with --config FILE"
    ]
    path.mkdir()
    assert refused(path) == [
        "controller.yaml: this is a folder: name the configuration file in it with --config FILE"
    ]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_a_file_without_read_permission_is_named(write: Write) -> None:
    path = write()
    path.chmod(0)
    assert refused(path) == [
        "controller.yaml: cannot be read (Permission denied): check the file and its permissions"
    ]


def test_a_file_that_cannot_be_opened_is_named_with_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "controller.yaml"
    path.symlink_to(path)
    assert refused(path) == [
        "controller.yaml: cannot be read (Too many levels of symbolic links): "
        "check the file and its permissions"
    ]


# --- the example


def test_the_example_file_loads_with_the_defaults() -> None:
    assert load(EXAMPLE, {}).node_id == 1


def test_the_example_file_lists_every_key_with_its_default(tmp_path: Path) -> None:
    text = EXAMPLE.read_text()
    lines = [line.removeprefix("#") for line in text.splitlines()]
    settings = [line for line in lines if line.partition(":")[0] in KEYS]
    assert sorted(line.partition(":")[0] for line in settings) == sorted(KEYS)
    everything = tmp_path / "controller.yaml"
    # An example is not the default.
    shown = [line for line in settings if _shows_default(KEYS[line.partition(":")[0]])]
    everything.write_text("\n".join(shown))
    explicit, implicit = load(everything, {}), load(EXAMPLE, {})
    assert explicit == implicit


def _shows_default(key: Key) -> bool:
    return bool(key.required or key.is_in_example) or not (key.example or key.default_text)


@pytest.mark.parametrize("key", [key for key in KEYS.values() if key.example])
def test_every_example_is_a_value_of_its_key(key: Key) -> None:
    key.parse(key.example)
