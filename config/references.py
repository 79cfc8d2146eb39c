"""`${env:NAME}` and `${dir:PATH:NAME}` in values of the node's own file.

Source: Apache Kafka, EnvVarConfigProvider and DirectoryConfigProvider, with their usual names. What is put
in is not resolved again. Unlike in Kafka, a reference that cannot be resolved is a problem.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quorumd.config.errors import BadValue
from quorumd.config.regular_file import read_regular_file

MAX_FILE_BYTES = 1 << 20
_REFERENCE = re.compile(r"\$\{([^}]*)(\}?)")
_FORMS = "${env:NAME} for a variable, ${dir:PATH:NAME} for the file NAME in the folder PATH"


@dataclass(frozen=True, slots=True)
class FileReference:
    """The value of a key that is in files, which may change while a node runs."""

    key: str
    parse: Callable[[str], Any] = field(repr=False)
    written: str = field(repr=False)
    """As it stands in the configuration."""
    environ: Mapping[str, str] = field(repr=False)
    folder: Path
    files: tuple[Path, ...]

    def value(self) -> Any:
        """The value as the files are now. Raises BadValue."""
        try:
            text, _ = resolve(self.written, self.environ, self.folder)
        except BadValue as error:
            raise BadValue(f"{self.key}: {error}") from None
        return self.parse(text.strip())


def resolve(text: str, environ: Mapping[str, str], folder: Path) -> tuple[str, tuple[Path, ...]]:
    """The text with what its references stand for, and the files that were read for it.

    A relative PATH begins at `folder`.
    Raises BadValue with what is missing. It shows nothing of what references stand for.
    """

    files: list[Path] = []

    def replaced(match: re.Match[str]) -> str:
        kind, _, rest = match[1].partition(":")
        path, colon, name = rest.rpartition(":")
        if match[2] and kind == "env" and rest:
            return _variable(rest, environ)
        if match[2] and kind == "dir" and path and colon and name and "/" not in name:
            files.append(folder / path / name)
            return _text_of(files[-1])
        # The text is not shown: it may be a password.
        raise BadValue(
            f"a '${{' begins a reference, and this is none: permitted are {_FORMS}. A password that "
            "has '${' in it is put into such a variable or file"
        )

    return _REFERENCE.sub(replaced, text), tuple(files)


def _variable(name: str, environ: Mapping[str, str]) -> str:
    value = environ.get(name, "")
    if not value.strip():
        raise BadValue(f"${{env:{name}}}: the environment variable {name} is not set: set it")
    return value


def _text_of(path: Path) -> str:
    try:
        text = read_regular_file(path, MAX_FILE_BYTES).decode()
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise BadValue(
                f"{path} is larger than {MAX_FILE_BYTES} bytes: is it the right file?"
            ) from None
        raise BadValue(
            f"{path} cannot be read ({error.strerror}): check the path and its permissions"
        ) from None
    except ValueError:
        raise BadValue(f"{path} is no UTF-8 text: is it the right file?") from None
    if not text.strip():
        raise BadValue(f"{path} is empty: write the value into it")
    return text
