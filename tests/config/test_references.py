"""`${env:NAME}` and `${dir:PATH:NAME}` in the node's own file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorumd.config.errors import BadValue
from quorumd.config.load import load
from quorumd.config.references import MAX_FILE_BYTES, resolve
from quorumd.config.secrets import Secret
from tests.support.config_files import Write, refused

TLS = """\
listener.security.protocol.map: CONTROLLER:SSL
ssl.keystore.location: node.pem
ssl.truststore.location: ca.pem
ssl.client.auth: required
"""
ANY_TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)


def test_a_password_comes_from_a_file_and_a_host_from_a_variable(
    write: Write, tmp_path: Path
) -> None:
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "key").write_text("hunter2 \n")
    other = tmp_path / "truststore"
    other.write_text("${env:HOST} is not looked into again")
    extra = (
        f"{TLS}http.listen: '${{env:HOST}}:8080'\n"
        "ssl.key.password: ${dir:secrets:key}\n"
        f"ssl.truststore.password: ${{dir:{tmp_path}:truststore}}\n"
    )
    config = load(write(extra=extra), {"HOST": "10.0.0.1"})
    tls = config.security_of("CONTROLLER")
    assert tls is not None
    assert str(config.http_listen) == "10.0.0.1:8080"
    assert tls.ssl_key_password == Secret("hunter2")
    assert tls.ssl_truststore_password == Secret("${env:HOST} is not looked into again")
    assert config.secret_files == {tmp_path / "secrets" / "key", other}


def test_only_what_a_secret_is_read_from_is_a_secret_file(write: Write, tmp_path: Path) -> None:
    """Others may be read by everybody, and no warning says so."""
    (tmp_path / "port").write_text("0.0.0.0:8080")
    (tmp_path / "key").write_text("hunter2")
    extra = (
        f"{TLS}http.listen: ${{dir:{tmp_path}:port}}\nssl.key.password: ${{dir:{tmp_path}:key}}\n"
    )
    config = load(write(extra=extra), {})
    assert str(config.http_listen) == "0.0.0.0:8080"
    assert config.secret_files == {tmp_path / "key"}


def test_variables_are_taken_as_they_are(write: Write) -> None:
    config = load(write(extra=TLS), {"QUORUMD_SSL_KEY_PASSWORD": "a${env:HOME}"})
    tls = config.security_of("CONTROLLER")
    assert tls is not None
    assert tls.ssl_key_password == Secret("a${env:HOME}")
    assert config.secret_files == frozenset()


FORMS = "permitted are ${env:NAME} for a variable, ${dir:PATH:NAME} for the file NAME in the folder PATH"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("${env:NOT_SET}", "${env:NOT_SET}: the environment variable NOT_SET is not set: set it"),
        ("${env:BLANK}", "${env:BLANK}: the environment variable BLANK is not set: set it"),
        (
            "${dir:/nowhere:key}",
            "/nowhere/key cannot be read (No such file or directory): check the path and its permissions",
        ),
        ("${dir:.:empty}", "FOLDER/empty is empty: write the value into it"),
        ("${dir:.:binary}", "FOLDER/binary is no UTF-8 text: is it the right file?"),
        (
            "${dir:.:large}",
            f"FOLDER/large is larger than {MAX_FILE_BYTES} bytes: is it the right file?",
        ),
        *(
            (
                text,
                f"a '${{' begins a reference, and this is none: {FORMS}. A password that has '${{' in it "
                "is put into such a variable or file",
            )
            for text in (
                *(
                    "${HOME}",
                    "${env:}",
                    "${env}",
                    "${env:HOME",
                    "${ENV:HOME}",
                    "${file:/a:b}",
                    "a${",
                ),
                *("${dir:key}", "${dir::key}", "${dir:/a:}", "${dir:/a:../key}"),
            )
        ),
    ],
)
def test_a_reference_that_cannot_be_resolved_is_named(
    write: Write, tmp_path: Path, text: str, problem: str
) -> None:
    (tmp_path / "empty").write_text(" \n")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    (tmp_path / "large").write_bytes(b"x" * (MAX_FILE_BYTES + 1))
    found = refused(write(extra=f"{TLS}ssl.key.password: '{text}'\n"), {"HOME": "h", "BLANK": " "})
    expected = problem.replace("FOLDER/", "")
    assert found == [f"controller.yaml:9: ssl.key.password: {expected}"]


def test_what_a_reference_stands_for_is_not_shown_when_it_is_in_the_wrong_place(
    write: Write,
) -> None:
    extra = "max.connections: ${env:PASSWORD}\nhttp.listen: '${env:PASSWORD}:80'\n"
    assert refused(write(extra=extra), {"PASSWORD": "hunter2 hunter3"}) == [
        "controller.yaml:5: max.connections: ${env:PASSWORD} stands for no value of this key: one is 1000",
        "controller.yaml:6: http.listen: ${env:PASSWORD}:80 stands for no value of this key: one is "
        "127.0.0.1:8080",
    ]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_a_file_without_read_permission(write: Write, tmp_path: Path) -> None:
    (tmp_path / "key").touch(0)
    (problem,) = refused(write(extra=f"{TLS}ssl.key.password: ${{dir:.:key}}\n"))
    assert "key cannot be read (Permission denied)" in problem


def test_a_pipe_is_refused(write: Write, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "key")
    (problem,) = refused(write(extra=f"{TLS}ssl.key.password: ${{dir:.:key}}\n"))
    assert "key cannot be read (it is no regular file)" in problem


@given(ANY_TEXT, ANY_TEXT, ANY_TEXT)
def test_what_a_variable_holds_is_put_in_as_it_is(before: str, value: str, after: str) -> None:
    environ = {"A": value}
    if "${" in before + after or before.endswith("$") or not value.strip():
        return
    assert resolve(f"{before}${{env:A}}{after}", environ, Path()) == (before + value + after, ())


@given(st.lists(st.sampled_from(["${", "}", ":", "env", "dir", "A", "$", "/", ".."]) | ANY_TEXT))
def test_any_text_is_resolved_or_refused_and_shows_nothing(parts: list[str]) -> None:
    shown = ""
    try:
        text, _ = resolve("".join(parts), {"A": "hunter2"}, Path("/nowhere"))
    except BadValue as error:
        shown = str(error)
    else:
        assert "${" not in text
    assert "hunter2" not in shown
