"""Texts of keys with their place: from a flat YAML file and from the environment.

Knows the syntax and nothing of the values, but for the names of the listeners, which keys may have in
them. The YAML tree is read without building Python values, so that `node.id: 010` or `http.listen: no` stay
the text that the operator wrote.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import yaml

from quorumd.config import keys
from quorumd.config.declaration import Key
from quorumd.config.errors import BadValue, ConfigError, ConfigProblem
from quorumd.config.references import resolve

DEFAULT_PATH = Path("controller.yaml")
MAX_FILE_BYTES = 1 << 20
NO_FILE = "there is no such file: name the configuration with --config FILE"
_NULL_TAG = "tag:yaml.org,2002:null"
_LISTENER_NAME = re.compile(r"([\w-]+)://")
_SYNTAX_ADVICE = "expected lines of the form 'key: value'"
_QUOTES_ADVICE = "; a value that begins with a bracket, as an IPv6 address, is written in quotes"


class Entry(NamedTuple):
    """The text of one value and the `file:line` or variable it comes from.

    `written` is the text with `${...}` as it stands in the file: what comes from elsewhere is not shown.
    """

    text: str
    where: str
    written: str = ""
    files: tuple[Path, ...] = ()
    """Files that hold the text: the file itself, or instead of it those that it refers to."""


@dataclass(slots=True)
class Entries:
    """Every text found, by key; `problems` are those of syntax and of unknown keys.

    A key whose value could not be read is in `unreadable`: it is not missing, too. Without a file
    `path` is where one would have been read.
    """

    path: Path = DEFAULT_PATH
    has_file: bool = True
    known: Mapping[str, Key] = field(default_factory=lambda: keys.KEYS)
    """The keys that there are, those of each listener included."""

    by_key: dict[str, Entry] = field(default_factory=dict)
    unreadable: set[str] = field(default_factory=set)
    problems: list[ConfigProblem] = field(default_factory=list)


def read(path: Path | None, environ: Mapping[str, str]) -> Entries:
    """All texts of the file, those of the environment instead where it has one.

    Without a path the file is DEFAULT_PATH, if it is there. Raises ConfigError if the file cannot
    be read or is no YAML mapping: nothing else could be said about it then.
    """
    entries, nodes = Entries(has_file=False), []
    if path is not None or os.path.lexists(DEFAULT_PATH):
        entries = Entries(path or DEFAULT_PATH)
        nodes = _nodes_of(entries)
    names = _listener_names(nodes, environ)
    entries.known = keys.known_keys(names)
    for key_node, value_node in nodes:
        key = key_node.value
        if problem := _problem_of_key(key, value_node, entries.known, names):
            entries.problems.append(ConfigProblem(_place(entries.path, key_node), problem))
        else:
            _read_value(key, value_node, entries, environ)
    _read_environment(environ, entries)
    return entries


def _nodes_of(entries: Entries) -> list[tuple[yaml.ScalarNode, yaml.Node]]:
    """The keys of the file, each once, and their values."""
    document = _compose(entries.path, _text_of(entries.path))
    if document is None or document.tag == _NULL_TAG:
        return []
    if not isinstance(document, yaml.MappingNode):
        where = _place(entries.path, document)
        raise _fatal(where, f"the file is not a mapping of keys to values: {_SYNTAX_ADVICE}")
    first_lines: dict[str, int] = {}
    nodes = []
    for key_node, value_node in document.value:
        where = _place(entries.path, key_node)
        if not isinstance(key_node, yaml.ScalarNode):
            entries.problems.append(ConfigProblem(where, f"a key has to be text: {_SYNTAX_ADVICE}"))
        elif (key := key_node.value) in first_lines:
            text = f"{key} is set twice, first in line {first_lines[key]}: remove one of them"
            entries.problems.append(ConfigProblem(where, text))
        else:
            first_lines[key] = key_node.start_mark.line + 1
            nodes.append((key_node, value_node))
    return nodes


def _listener_names(
    nodes: Iterable[tuple[yaml.ScalarNode, yaml.Node]], environ: Mapping[str, str]
) -> tuple[str, ...]:
    """Names of the listeners, wherever they are set; what is wrong with them is not judged here."""
    text = environ.get(keys.variable_of("listeners"), "").strip()
    for key_node, value_node in () if text else nodes:
        if key_node.value == "listeners":
            items = value_node.value if isinstance(value_node, yaml.SequenceNode) else [value_node]
            text = ",".join(str(item.value) for item in items)
    return tuple(_LISTENER_NAME.findall(text))


def _text_of(path: Path) -> str:
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise _fatal(str(path), NO_FILE) from None
    except IsADirectoryError:
        advice = "this is a folder: name the configuration file in it with --config FILE"
        raise _fatal(str(path), advice) from None
    except OSError as error:
        advice = f"cannot be read ({error.strerror}): check the file and its permissions"
        raise _fatal(str(path), advice) from None
    if len(raw) > MAX_FILE_BYTES:
        raise _fatal(
            str(path), f"the file is larger than {MAX_FILE_BYTES} bytes: is it the right one?"
        )
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise _fatal(f"{path}:{line}", "this is not UTF-8 text: is it the right file?") from None


def _compose(path: Path, text: str) -> yaml.Node | None:
    try:
        node: yaml.Node | None = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        raise _fatal(where, _explained(error)) from None
    except (yaml.YAMLError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise _fatal(str(path), f"this is not YAML ({reason}): {_SYNTAX_ADVICE}") from None
    return node


def _explained(error: yaml.MarkedYAMLError) -> str:
    problem = error.problem or "syntax error"
    if problem.startswith("found undefined alias"):
        # The value is not shown: an operator may have meant a password.
        return (
            "a value that begins with * is put into quotes: YAML takes it for the name of another"
        )
    if error.context and error.context.startswith("found duplicate anchor"):
        return "a value that begins with & is put into quotes: YAML takes it for a name"
    if "'\\t'" in problem:
        return "there is a tab here: YAML takes only spaces around keys and values"
    if "another document" in problem:
        return "a second document begins here: the file must hold one ('---' at most at the top)"
    context = f"{error.context}, " if error.context else ""
    quotes = _QUOTES_ADVICE if "flow" in context else ""
    return f"this is not YAML ({context}{problem}): {_SYNTAX_ADVICE}{quotes}"


def _problem_of_key(
    key: str, value: yaml.Node, known_keys: Mapping[str, Key], listeners: Iterable[str]
) -> str | None:
    if key in known_keys:
        return None
    if isinstance(value, yaml.MappingNode):
        return f"unknown key {key!r}: keys are flat, write 'quorum.voters: ...' and not a block"
    if "sasl." in key.lower():
        return f"unknown key {key!r}: logins are not supported yet, remove it"
    if key.lower().startswith(keys.LISTENER_SCOPE):
        return _problem_of_listener_key(key, known_keys, listeners)
    known = keys.nearest(key, known_keys)
    advice = f"did you mean {known}?" if known else f"known are {', '.join(keys.KEYS)}"
    return f"unknown key {key!r}: {advice}"


def _problem_of_listener_key(
    key: str, known_keys: Mapping[str, Key], listeners: Iterable[str]
) -> str:
    if key.lower() in known_keys:
        return f"unknown key {key!r}: the listener's name is lower case here, write {key.lower()}"
    scopes = [keys.scope_of(name) for name in listeners]
    scope = next((each for each in scopes if key.startswith(each)), None)
    if scope is None:
        begin = " or ".join(scopes) or keys.scope_of("NAME")
        return f"unknown key {key!r}: there is no such listener: these keys begin with {begin}"
    known = keys.nearest(key.removeprefix(scope), keys.LISTENER_KEYS)
    may_be = f"for one listener alone there are {', '.join(keys.LISTENER_KEYS)}"
    return f"unknown key {key!r}: {f'did you mean {scope}{known}?' if known else may_be}"


def _read_value(key: str, node: yaml.Node, entries: Entries, environ: Mapping[str, str]) -> None:
    path = entries.path
    where = _place(path, node)
    texts: list[str] = []
    nodes = (
        node.value if isinstance(node, yaml.SequenceNode) and entries.known[key].is_list else [node]
    )
    for item in nodes:
        if not isinstance(item, yaml.ScalarNode):
            kind = "a list" if isinstance(item, yaml.SequenceNode) else "a block of keys"
            problem = f"{key}: {kind} is the wrong type here, write one value"
        elif item.tag == _NULL_TAG:
            problem = f"{key} has no value: write one, or remove the line"
        else:
            texts.append(item.value.strip())
            continue
        entries.problems.append(ConfigProblem(_place(path, item), problem))
        entries.unreadable.add(key)
        return
    if not texts:
        return
    written = ",".join(texts)
    try:
        text, files = resolve(written, environ, path.absolute().parent)
    except BadValue as error:
        entries.problems.append(ConfigProblem(where, f"{key}: {error}"))
        entries.unreadable.add(key)
        return
    if text == written:
        entries.by_key[key] = Entry(text, where, files=(path,))
    else:
        entries.by_key[key] = Entry(text.strip(), where, written, files)


def _read_environment(environ: Mapping[str, str], entries: Entries) -> None:
    """A variable that is set to nothing counts as not set: that is how compose files pass it on."""
    known = {keys.variable_of(key): key for key in entries.known}
    for name in sorted(environ):
        if not name.startswith(keys.ENVIRONMENT_PREFIX) or not environ[name].strip():
            continue
        if (key := known.get(name)) is not None:
            entries.by_key[key] = Entry(environ[name].strip(), _variable(name))
        elif meant := keys.nearest_variable(name, entries.known):
            text = f"there is no such setting: did you mean {meant}?"
            entries.problems.append(ConfigProblem(_variable(name), text))
        elif keys.is_own_variable(name):
            text = (
                "there is no such setting: a variable is named as its key, which the manual lists"
            )
            entries.problems.append(ConfigProblem(_variable(name), text))


def _variable(name: str) -> str:
    return f"environment variable {name}"


def _place(path: Path, node: yaml.Node) -> str:
    return f"{path}:{node.start_mark.line + 1}"


def _fatal(where: str, text: str) -> ConfigError:
    return ConfigError([ConfigProblem(where, text)])
