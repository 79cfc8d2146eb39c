"""`quorumd-pipeline report` and what the commands say when something is wrong: without Spark."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from quorumd.pipeline.audit.findings import AuditFinding, FindingKind, findings_table
from quorumd.pipeline.cli import run
from quorumd.pipeline.errors import plain_message
from quorumd.pipeline.report.facts import read_facts
from quorumd.pipeline.tables.manifests import table_files
from quorumd.pipeline.tables.output import held_output
from tests.pipeline.written import START_MS, Log, voter_set
from tests.support.browser import find_chromium, missing_chromium, running_browser
from tests.support.ports import free_ports

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    """Leaders 1 and 3 for a minute each; voter 2 goes; 40 records and 5 control records."""
    log = Log()
    folder = tmp_path / "tables"
    with held_output(folder) as output:
        log.elect(1, [1, 2, 3])
        log.control(voter_set((1, 1), (2, 2), (3, 3)))
        log.append((b"k", b"v%d" % i) for i in range(10))
        log.take(output)
        log.now_ms += 60_000
        log.elect(3, [1, 2, 3])
        log.control(voter_set((1, 1), (3, 3)))
        log.append((b"<script>", b"v%d" % i) for i in range(30))
        log.now_ms += 60_000
        log.control(voter_set((1, 1), (3, 3), (4, 4)))
        log.take(output)
    return folder


class Tags(HTMLParser):
    """The tags that are open, and what would be loaded from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loaded: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "br"):
            self.open.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "xlink:href") and not (value or "").startswith("#"):
                self.loaded.append(value or "")
            if name == "id":
                self.ids.append(value or "")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_numbers_are_those_of_the_tables(tables: Path) -> None:
    facts = read_facts(tables)
    assert (facts.records, facts.control_records) == (45, 5)
    assert (facts.first_s, facts.last_s) == (START_MS // 1000, START_MS // 1000 + 120)
    assert sum(facts.rate.counts) == 45
    assert facts.rate.width_s == 1
    assert (facts.rate.counts[0], facts.rate.counts[60], facts.rate.counts[120]) == (12, 32, 1)
    assert facts.findings is None


def test_the_page_stands_alone_and_tells_all(tables: Path, tmp_path: Path, capsys: Capture) -> None:
    found = [
        AuditFinding(
            kind=FindingKind.BAD_CRC, offset=7, end_offset=8, replicas=("2",), what="<b>flipped</b>"
        ),
        AuditFinding(
            kind=FindingKind.LAG, offset=44, end_offset=45, replicas=("3",), what="behind"
        ),
    ]
    (tmp_path / "audit").mkdir()
    pq.write_table(findings_table(found), tmp_path / "audit" / "findings.parquet")
    page = tmp_path / "page.html"
    arguments = ["--findings", str(tmp_path / "audit"), "--output", str(page)]
    assert run(["report", str(tables), *arguments]) == 0
    assert str(page) in capsys.readouterr().out
    text = page.read_text()
    tags = Tags()
    tags.feed(text)
    assert not tags.open
    assert not tags.loaded
    assert len(tags.ids) == len(set(tags.ids)), "ids of several plots meet"
    assert set(re.findall(r"url\(#([^)]*)\)", text)) <= set(tags.ids)
    assert text.count("<svg") == 4
    assert "url(http" not in text
    for words in ("1 finding", "and 1 note", "&lt;b&gt;flipped", "replica 3", "REMOVE", "2 epochs"):
        assert words in text, words
    assert "1, 3, 4" in text, "the voters at the end"


def test_times_that_no_calendar_has_are_left_out(tmp_path: Path) -> None:
    log = Log()
    log.elect(1, [1])
    for year in (8999, 9998, 290_000, 200_000_000):
        log.now_ms = round((year - 1970) * 365.2425 * 86_400_000)
        log.append([(b"k", b"v%d" % year)])
    with held_output(tmp_path / "tables") as output:
        log.take(output)
    facts = read_facts(tmp_path / "tables")
    assert (facts.records, sum(facts.rate.counts)) == (5, 2)
    assert facts.first_s == START_MS // 1000
    page = tmp_path / "page.html"
    assert run(["report", str(tmp_path / "tables"), "--output", str(page)]) == 0
    assert "to 8998-12-31" in page.read_text()


@pytest.mark.live
@pytest.mark.skipif(find_chromium() is None, reason=missing_chromium())
def test_a_browser_shows_it_without_complaint(tables: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert run(["report", str(tables), "--output", str(page)]) == 0
    with running_browser(tmp_path / "browser") as browser:
        tab = browser.open()
        tab.go(page.as_uri())
        tab.wait_text("Lag of the tables")
        assert tab.evaluate("document.querySelectorAll('svg').length") == 4
        wide = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
        assert tab.evaluate(wide)
        assert tab.complaints() == []


def refused(capsys: Capture, code: int, *arguments: object) -> str:
    """The one line of a command that fails."""
    assert run(list(map(str, arguments))) == code
    captured = capsys.readouterr()
    (line,) = [line for line in captured.err.splitlines() if line]
    assert line.startswith("Error: ")
    assert "Traceback" not in line
    return line


def test_a_folder_that_holds_no_tables_is_said_to_hold_none(
    tmp_path: Path, capsys: Capture
) -> None:
    for command in ("report", "state"):
        assert "has no tables: make them" in refused(capsys, 2, command, tmp_path)
        assert "is no folder" in refused(capsys, 2, command, tmp_path / "none")
    with held_output(tmp_path / "empty"):
        pass
    assert "holds no records yet" in refused(capsys, 2, "report", tmp_path / "empty")


def test_a_file_that_is_gone_or_unreadable_is_damage(tables: Path, capsys: Capture) -> None:
    (path,) = map(Path, table_files(tables, "leadership"))
    size_bytes = path.stat().st_size
    path.write_bytes(bytes(size_bytes))
    assert "a file of the tables in" in refused(capsys, 3, "report", tables)
    path.write_bytes(b"")
    assert f"has 0 bytes and not {size_bytes}" in refused(capsys, 3, "report", tables)
    path.unlink()
    assert "is missing, and a manifest names it" in refused(capsys, 3, "report", tables)


def test_findings_that_are_none_are_named(tables: Path, tmp_path: Path, capsys: Capture) -> None:
    assert "audit DIR... --findings" in refused(
        capsys, 2, "report", tables, "--findings", tmp_path / "none.parquet"
    )
    records = next((tables / "records").iterdir())
    page = tmp_path / "page.html"
    said = refused(capsys, 2, "report", tables, "--findings", records, "--output", page)
    assert "holds no findings of an audit" in said
    assert not page.exists()


def test_a_full_disk_for_the_page_is_named(tables: Path, tmp_path: Path, capsys: Capture) -> None:
    target = tmp_path / "report.html"
    part = tmp_path / ".report.html.part"
    part.symlink_to("/dev/full")
    assert run(["report", str(tables), "-o", str(target)]) == 1
    assert capsys.readouterr().err == f"Error: {target}: No space left on device\n"
    assert not part.is_symlink()
    assert not target.exists()


def test_an_unreachable_quorum_is_one_line_and_leaves_empty_tables(
    tmp_path: Path, capsys: Capture
) -> None:
    (port,) = free_ports(1)
    for command in ("run", "batch"):
        server = f"127.0.0.1:{port}"
        said = refused(capsys, 1, command, "-b", server, "-o", tmp_path / "t", "--timeout", 0.3)
        assert "no leader responded within 0.3 s" in said
        assert f"{server}: connection refused" in said
    assert not list((tmp_path / "t" / "records").iterdir())


def test_a_wrong_path_and_an_unusable_output_are_one_line(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("text")
    for path in ("empty", "none"):
        said = refused(capsys, 1, "batch", "--path", tmp_path / path, "-o", tmp_path / "t")
        assert path in said
    said = refused(capsys, 1, "run", "-b", "localhost:1", "-o", tmp_path / "file" / "t")
    assert "can't write the tables" in said
    said = refused(capsys, 1, "run", "-b", "localhost:1", "-o", tmp_path)
    assert "is not empty" in said


def test_an_error_in_a_worker_that_has_no_sentence_of_its_own_is_said_as_it_is() -> None:
    text = (
        "An exception was thrown from the Python worker:\n"
        'Traceback (most recent call last):\n  File "sink.py", line 141, in write_log\n'
        "TypeError: unsupported operand type(s)\n\n"
        "\tat org.apache.spark.api.python.BasePythonRunner.handlePythonException(PythonRunner.scala)\n"
        "Caused by: PythonException: An exception was thrown from the Python worker:\n"
    )
    assert plain_message(Exception(text)) == "unsupported operand type(s)"


def test_two_runs_at_once_are_one_line(tmp_path: Path, capsys: Capture) -> None:
    with held_output(tmp_path / "t"):
        said = refused(capsys, 1, "run", "-b", "localhost:1", "-o", tmp_path / "t")
    assert "is being written by another run, process" in said


def test_where_the_log_is_has_to_be_said_once(tmp_path: Path, capsys: Capture) -> None:
    assert run(["run", "-o", str(tmp_path / "t")]) == 2
    assert "Give --bootstrap-server for a live quorum, or --path" in capsys.readouterr().err
    assert run(["run", "-b", "x:1", "--path", "y", "-o", str(tmp_path / "t")]) == 2
    assert not (tmp_path / "t").exists()
