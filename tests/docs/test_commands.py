"""The commands and programs of README.md and docs/ run as they are written, against a demo quorum.

Hosts and paths of the documents become those of this machine. What cannot run here is in `NOT_HERE`, by the
beginning of its line or of its block, with the reason; of our own commands among it, at least names and
options are checked. Whatever is in neither is run, and so fails if it is no command.
"""

from __future__ import annotations

import ast
import re
import shlex
import shutil
import signal
import subprocess
import textwrap
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click
import pytest

from quorumd.cli.main import cli as quorumctl
from quorumd.pipeline.cli import cli as quorumd_pipeline
from quorumd.server.main import cli as quorumd
from simulation.__main__ import cli as simulation
from simulation.edges.command import edges
from simulation.merge import cli as merge
from tests.docs.shell import BIN, environment, replaced, run_shell
from tests.pipeline.quick_start import start_quickly
from tests.support.authority import Authority
from tests.support.demo_files import configure_demo
from tests.support.ports import free_ports

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
WITH_SPARK = [ROOT / "docs/pipeline.md"]
WAIT_S = 300.0
OURS: dict[str, click.Group] = {
    "quorumctl": quorumctl,
    "quorumd": quorumd,
    "quorumd-pipeline": quorumd_pipeline,
}
LINE_BY_LINE = (*OURS, "make", "kafka-console-producer.sh")
"""A block that begins so is not left out as a whole if its first line cannot run."""
ENDLESS = {"quorumctl tail --follow": "", "quorumctl watch": "", "quorumd start": " leader "}
"""Interrupted as soon as they have printed a line with this."""
OBSERVER = "node.id: 9001"
"""Begins the configuration of a node beside Kafka, which is formatted here."""

_OUTPUT = "no command: what is printed, or in a file"
_HOSTS = "changes the host; tests/deploy/test_hosts.py"
_DOCKER = "needs Docker; tests/containers"
_KAFKA = "needs a distribution of Kafka; tests/clients/test_kafka_tools.py runs the same classes"
_REAL_KAFKA = "needs a real Kafka quorum; tests/kafka/test_observer.py"
_PACKAGES = "fetches packages; tests/packaging/test_distribution.py installs a wheel without"
_MIGRATION = "follows from what comes before; tests/docs/test_security_migration.py"
_ITSELF = "it is what runs this"
_SECURE = "follows from what comes before; tests/docs/test_security_setup.py"
_MEMBERS = "needs nodes that are not there; tests/docs/test_voter_commands.py runs it"
_SPARK = "takes a Spark session of its own; tests/pipeline/test_tables_disk.py"
_DOCTOR = "takes a Spark session of its own; tests/pipeline/test_doctor.py"
_CLUSTER = "needs a Spark cluster; tests/pipeline/test_cluster.py"
NOT_HERE = {
    # README.md
    "make run": "runs until Ctrl-C; tests/demo/test_demo.py runs the demo",
    "make test": _ITSELF,
    "ClusterId:": _OUTPUT,
    "kafka-console-producer.sh ": _KAFKA,
    "kafka-console-consumer.sh ": _KAFKA,
    "kafka-metadata-quorum.sh ": _KAFKA,
    "node.id: 1": _OUTPUT,
    "quorumctl add-voter ": _MEMBERS,
    "quorumctl remove-voter ": _MEMBERS,
    "quorumctl replace-voter ": _MEMBERS,
    "quorumctl reassign --voters ": _MEMBERS,
    "quorumctl reassign": _MEMBERS,
    "quorumctl reassign --watch": _MEMBERS,
    "quorumctl reassign --cancel": _MEMBERS,
    "async with quorumd.QuorumAdmin(servers) as admin:": _MEMBERS,
    "quorumd-pipeline doctor": _DOCTOR,
    "quorumd-pipeline run --output tables": _SPARK,
    # compiling.md
    "make wheel": "compiles for minutes; tests/compiled/test_compiled.py builds the same, without optimising",
    "make test-compiled ": "compiles for minutes, and runs tests/raft once more",
    # CONTRIBUTING.md
    "make quick": _ITSELF,
    "make fix": "changes the sources",
    ".venv/bin/python -m pytest ": _ITSELF,
    # architecture.md, storage-format.md
    "sequenceDiagram": "a diagram; tests/docs/test_sequence_diagrams.py",
    "stateDiagram-v2": "a diagram; tests/docs/test_documents.py",
    "<storage.dir>/": _OUTPUT,
    # audit.md
    "quorumd-pipeline audit /srv/collected --master ": _CLUSTER,
    "metadata_json(value)": _OUTPUT,
    # kafka.md
    "quorumctl describe --status --bootstrap-server ": _REAL_KAFKA,
    "node.id: 9001": _OUTPUT,
    "quorumctl export-kafka ": "needs the directory of an observer of Kafka; tests/kafka/test_rescue.py",
    # operations.md
    "useradd ": _HOSTS,
    "systemctl ": _HOSTS,
    "install -m 0644 deploy/prometheus/prometheus.yml ": "changes the host; tests/deploy/test_alerts.py has"
    " promtool check both files",
    "2026-11-20T20:39:51.749Z INFO ": _OUTPUT,
    "ERROR node ": _OUTPUT,
    "docker ": _DOCKER,
    "cp deploy/.env.example ": _DOCKER,
    "/opt/quorumd/bin/pip wheel ": _PACKAGES,
    "QUORUMD_COMPILE=1 /opt/quorumd/bin/pip install ": _PACKAGES,
    "sed -i '/^quorum.voters:/d' ": _HOSTS,
    "install -D -m 0644 deploy/hosts/joining.yaml ": _HOSTS,
    "install -d -o quorumd -g quorumd -m 0700 /var/lib/quorumd": _HOSTS,
    "nft ": _HOSTS,
    "chown ": _HOSTS,
    "mv /etc/quorumd/tls/new.pem ": _HOSTS,
    "curl --cacert ": "needs certificates; tests/deploy/test_https.py",
    # pipeline.md
    "quorumd-pipeline run -b localhost:9093 --output tables": _SPARK,
    "quorumd-pipeline batch ": _SPARK,
    "from quorumd.pipeline import read_table, state_as_of": "in a Spark session;"
    " tests/pipeline/test_tables_spark.py",
    "tables/": _OUTPUT,
    # security.md
    "quorumd demo --secure": "runs until Ctrl-C; tests/demo/test_demo.py",
    "install -d -m 0755 /etc/quorumd/tls": _SECURE,
    "quorumd certs check --config /etc/quorumd/controller.yaml": _SECURE,
    "quorumctl describe --command-config ": _SECURE,
    "quorumctl describe -b db1.example.com:9093": _MIGRATION,
    "listener.security.protocol.map: CONTROLLER:SSL": _SECURE,
    # coordination.md
    "NAME": _OUTPUT,
    # simulation.md
    "make sim": "takes half an hour; tests/simulation/test_runs.py",
    "make unreached ": "takes ten minutes",
    "python -m simulation --seeds 1..1000000 ": "takes days; tests/simulation/test_merge.py",
    "python -m simulation --edges": "takes hours; tests/simulation/test_edges.py",
    "raft/": _OUTPUT,
    "python -m simulation.merge ": "tests/simulation/test_merge.py",
    # spark-cluster.md, spark-source.md
    "python3.11 -m venv ": _PACKAGES,
    "quorumd-pipeline doctor --master ": _CLUSTER,
    "quorumd-pipeline run -b host1:9093 ": _CLUSTER,
    "quorumd-pipeline audit /mnt/node-1 /mnt/node-2 /mnt/node-3 --master ": _CLUSTER,
    "from quorumd.pipeline.cli import main": _CLUSTER,
    "spark-submit ": _CLUSTER,
    "tls = ": "in a Spark session; tests/pipeline/test_source_tls.py",
    "kafka.security.protocol=SSL": "in a Spark session; tests/pipeline/test_source_tls.py",
    "spark = SparkSession.builder.getOrCreate()": _CLUSTER,
    "spark.driver.memory ": _OUTPUT,
    "spark-class ": _CLUSTER,
    'spark.read.format("quorumd").option(': "in a Spark session; tests/pipeline/test_source_batch.py",
}
"""Whole lines, or beginnings of lines that end with a space or a bracket."""
MISSING = [program for program in ("curl", "kcat") if shutil.which(program) is None]
"""Where one is not installed, its lines are left out."""


def blocks_of(document: Path) -> Iterator[list[str]]:
    """The indented and the fenced blocks, without their indentation."""
    text = document.read_text()
    for paragraphs in re.split(r"\n(?=\S)", text):
        behind = paragraphs.partition("\n\n    ")[2]
        if behind:
            indented = re.split(r"\n {0,3}(?=\S)", f"    {behind}")[0]
            yield textwrap.dedent(indented).strip("\n").splitlines()
    for fenced in re.findall(r"^```\w*\n(.*?)\n```$", text, re.MULTILINE | re.DOTALL):
        yield fenced.splitlines()


def is_python(block: list[str]) -> bool:
    flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    try:
        compile("\n".join(block), "block", "exec", flags)
    except SyntaxError:
        return False
    return True


def statements_of(block: list[str]) -> list[str]:
    """Lines of a shell, continued ones joined, without what is told beside them."""
    lines = "\n".join(block).replace("\\\n", "").splitlines()
    return [re.sub(r"(?<=\S) {3,}.*", "", line) for line in lines if line.strip()]


def entry_of(statement: str) -> str | None:
    """The entry of NOT_HERE that names it."""
    named = (each for each in NOT_HERE if statement.startswith(each))
    return next((each for each in named if each == statement or each[-1] in " (/"), None)


class Place:
    """A folder with a demo quorum, where the documents' commands are run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environ = environment()
        start_quickly(self.environ)
        self.exports: list[str] = []
        self._replaced: list[tuple[str, str]] = []

    def prepare(self) -> None:
        """The demo runs, and every offset and every key that the documents name is in its log."""
        folder = self.folder
        configure_demo(folder / "demo-data")
        self.run("quorumd demo --detach")
        configs = [(folder / f"demo-data/node{node}.yaml").read_text() for node in (1, 2, 3)]
        addresses = re.findall(r"^listeners: CONTROLLER://(.+)$", "".join(configs), re.MULTILINE)
        (http,) = re.findall(r"^http\.listen: (.+)$", configs[0], re.MULTILINE)
        make_keys(folder)
        # Later than every record: in seconds alone, now may be before the first one.
        soon = datetime.now(UTC) + timedelta(minutes=1)
        today = soon.isoformat(timespec="seconds").replace("+00:00", "Z")
        self._replaced = [
            (r"(\$PWD/)?\.venv/bin|/opt/quorumd/bin", str(BIN)),
            (r"127\.0\.0\.1:1909\d(,127\.0\.0\.1:1909\d)+", ",".join(addresses)),
            (r"db1(\.example\.com)?:9093(,db\d(\.example\.com)?:9093)+", ",".join(addresses)),
            (r"localhost:(19091|9093)", addresses[0]),
            (r"127\.0\.0\.1:8080", http),
            (r"/srv/(?:node-)?(\d)", r"demo-data/node\1"),
            (r"/srv/collected", "demo-data/node1 demo-data/node2 demo-data/node3"),
            (r"/srv/audit", "audit"),
            (r"/etc/quorumd/controller\.yaml", f"{folder}/controller.yaml"),
            (r"runuser -u quorumd -- | -o quorumd -g quorumd(?= )", ""),
            (r"/backup", f"{folder}/backup"),
            (r"/var/lib/quorumd$", f"{folder}/stopped"),
            (r"--storage-dir /var/lib/quorumd", f"--storage-dir {folder}/stopped"),
            (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", today),
        ]
        self.environ["QUORUM_BOOTSTRAP_SERVERS"] = ",".join(addresses)
        self.run("seq 1300 | quorumctl append")
        self.run("quorumctl put jobs/17 waiting; quorumctl put jobs/18 running")
        # A copy is the directory of no running node.
        shutil.copytree(folder / "demo-data/node1", folder / "stopped")
        self.run(
            "quorumd-pipeline audit demo-data/node1 demo-data/node2 demo-data/node3 --findings audit"
        )

    def begin(self) -> None:
        """What a document finds: a configured node that is not formatted."""
        shutil.rmtree(self.folder / "node", ignore_errors=True)
        self.exports = []
        own = f"127.0.0.1:{free_ports(1)[0]}"
        (self.folder / "controller.yaml").write_text(
            f"node.id: 1\nstorage.dir: {self.folder}/node\nlisteners: CONTROLLER://{own}\n"
            f"quorum.voters: 1@{own}\n"
        )

    def configure(self, block: list[str]) -> None:
        """The node gets this configuration; what it names is not there, so it can be formatted only."""
        text = "\n".join(block).replace("/var/lib/quorumd", f"{self.folder}/node")
        (self.folder / "controller.yaml").write_text(f"{text}\n")

    def _here(self, text: str) -> str:
        return replaced(text, self._replaced)

    def run(self, statement: str, *, codes: tuple[int, ...] = (0,)) -> str:
        """What a line of a shell prints."""
        done = run_shell(
            self._here("\n".join([*self.exports, statement])),
            *("-o", "pipefail"),
            folder=self.folder,
            environ=self.environ,
            timeout_s=WAIT_S,
        )
        assert done.returncode in codes, f"{statement}\n{done.returncode}\n{done.stdout}"
        return done.stdout

    def run_a_while(self, statement: str) -> None:
        """Until it has printed what is waited for; Ctrl-C ends it."""
        (awaited,) = (each for start, each in ENDLESS.items() if statement.startswith(start))
        with subprocess.Popen(
            ["bash", "-c", self._here("\n".join([*self.exports, f"exec {statement}"]))],
            cwd=self.folder,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            assert process.stdout is not None
            printed = []
            for line in process.stdout:
                printed.append(line)
                if awaited in line:
                    process.send_signal(signal.SIGINT)
                    break
            printed += process.stdout
        assert process.returncode in (0, 130), f"{statement}\n{''.join(printed)}"

    def run_python(self, block: list[str]) -> None:
        """A program, or a piece of one that has a quorum's addresses in `servers`."""
        text = program_of(block, self.environ["QUORUM_BOOTSTRAP_SERVERS"])
        (self.folder / "program.py").write_text(self._here(text))
        self.run("python program.py")

    def run_session(self, lines: list[str]) -> None:
        """Commands behind a `$`, and what each prints: the same here but for the numbers."""
        commands = "\n".join(lines).removeprefix("$ ").split("\n$ ")
        for each in commands:
            command, _, expected = each.partition("\n")
            if command.startswith(tuple(ENDLESS)):
                self.run_a_while(command)
                continue
            printed = self.run(command, codes=(0, 1))
            assert without_numbers(printed) == without_numbers(expected), command


def program_of(block: list[str], servers: str) -> str:
    """What a block of Python is as a program: a piece of one is completed."""
    text = "\n".join(block)
    if not block[0].startswith("async with"):
        return text if "import quorumd" in text else f"import quorumd\n{text}"
    text = f"async def main():\n{textwrap.indent(text, '    ')}\n\nasyncio.run(main())\n"
    return f"import asyncio\nimport quorumd\nservers = {servers!r}\n{text}"


def without_numbers(text: str) -> str:
    return re.sub(r"\d+", "N", text).strip()


def make_keys(folder: Path) -> None:
    """A CA, the key of a client, and properties that name both."""
    authority = Authority(folder)
    authority.store("alice", ("localhost",))
    (folder / "ca.pem").write_bytes(authority.trust.read_bytes())
    (folder / "client.properties").write_text(
        f"security.protocol=SSL\nssl.truststore.location={folder}/ca.pem\nssl.truststore.type=PEM\n"
    )


def check_options(statement: str) -> None:
    """A command line of ours names a command and options that exist; one of make or pytest, what exists."""
    statement = statement.removeprefix("runuser -u quorumd -- ")
    program, _, rest = statement.partition(" ")
    if program == "make":
        done = run_shell(f"make -n {rest}", folder=ROOT, environ=environment(), timeout_s=30)
        assert done.returncode == 0, done.stdout
    elif rest.startswith("-m pytest "):
        paths = [word for word in shlex.split(rest) if word.startswith("tests/")]
        assert paths, statement
        assert all((ROOT / path).exists() for path in paths), statement
    elif program in ("python", *OURS):
        _, *words = shlex.split(statement, comments=True)
        command, words = command_of(program, words)
        assert command is not None, statement
        command.make_parser(click.Context(command)).parse_args(words)


def command_of(program: str, words: list[str]) -> tuple[click.Command | None, list[str]]:
    """The command that a line names, and the words behind its name."""
    if program == "python":
        _, module, *words = words
        if module == "simulation" and words[:1] == ["--edges"]:
            return edges, words[1:]
        return {"simulation": simulation, "simulation.merge": merge}.get(module), words
    group, (name, *words) = OURS[program], words
    return group.get_command(click.Context(group), name), words


def run_lines(place: Place, statements: list[str]) -> None:
    for statement in statements:
        if entry_of(statement):
            check_options(statement)
        elif statement.startswith("export "):
            place.exports.append(statement)
        elif statement.startswith(tuple(ENDLESS)):
            place.run_a_while(statement)
        elif statement.startswith("quorumctl transfer-leader --to "):
            # Whoever has the whole log may be faster; then the command says to repeat it.
            while "then repeat it" in place.run(statement, codes=(0, 1)):
                place.run("quorumctl append hello")
        elif not any(program in statement.split() for program in MISSING):
            place.run(statement)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    place = Place(tmp_path_factory.mktemp("documents"))
    try:
        place.prepare()
        yield place
    finally:
        place.run("quorumd demo --stop")


@pytest.mark.parametrize(
    "document",
    [
        pytest.param(path, id=path.name, marks=[pytest.mark.spark] if path in WITH_SPARK else [])
        for path in DOCUMENTS
    ],
)
def test_what_a_document_says_works(document: Path, place: Place) -> None:
    place.begin()
    for block in blocks_of(document):
        statements = statements_of(block)
        if statements[0] == OBSERVER and any("storage.dir" in line for line in block):
            place.configure(block)
        elif entry_of(statements[0]) and statements[0].split()[0] not in LINE_BY_LINE:
            for statement in statements:
                check_options(statement)
        elif is_python(block):
            place.run_python(block)
        elif block[0].startswith("$ "):
            place.run_session(block)
        else:
            run_lines(place, statements)


def test_all_that_is_said_not_to_run_is_in_a_document() -> None:
    statements = [
        statement
        for document in DOCUMENTS
        for block in blocks_of(document)
        for statement in statements_of(block)
    ]
    assert NOT_HERE.keys() - set(map(entry_of, statements)) == set()


def test_tests_that_run_what_does_not_run_here_are_there() -> None:
    named = {path for why in NOT_HERE.values() for path in re.findall(r"\btests/[\w/.]+\w", why)}
    assert len(named) > 15
    assert {path for path in named if not (ROOT / path).exists()} == set()


def test_what_does_not_run_here_runs_in_another_test_or_says_why_in_none() -> None:
    in_none = {start for start, why in NOT_HERE.items() if "tests/" not in why and why != _OUTPUT}
    assert in_none == {
        *("make test", "make quick", ".venv/bin/python -m pytest ", "make fix", "make unreached "),
    }
