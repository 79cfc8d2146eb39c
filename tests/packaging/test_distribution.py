"""What is published: its files, and that it works where other people's modules have the same names."""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterator
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest
from readme_renderer import markdown

import quorumd
from tests.packaging.built import (
    REVISION,
    ROOT,
    Installation,
    build,
    contents,
    copy_sources,
    unpacked,
)
from tests.support.demo_files import configure_demo

LINKED = ("config", "raft", "security", "server", "storage", "wire")
HOSTILE = ("config.py", "raft.py", "server.py", "storage/__init__.py", "wire.py")
PYTHON_CLIENT = """
import asyncio, sys, quorumd

async def main():
    async with quorumd.QuorumClient(sys.argv[1]) as client:
        await client.append([quorumd.Record(key=b"color", value=b"blue")])
        async with quorumd.KeyValueView(client) as view:
            print(view.get(b"color").value)

asyncio.run(main())
"""
FIXTURES = """
import sys

def test_that_needs_no_quorum():
    assert "quorumd.testing" not in sys.modules

def test_with_a_quorum(quorum):
    import asyncio, quorumd

    async def append():
        async with quorumd.QuorumClient(quorum.servers) as client:
            await client.append([quorumd.Record(key=quorum.key("color"), value=b"blue")])

    asyncio.run(append())
"""
SPARK = """
import sys
from pyspark.sql import SparkSession
from quorumd.pipeline.java import use_java

use_java()
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
rows = spark.read.format("quorumd").option("bootstrap.servers", sys.argv[1]).load()
print(sorted({b"one", b"two"} & {bytes(row.value) for row in rows.select("value").collect()}))
spark.stop()
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_sources(tmp_path_factory.mktemp("build") / "source")


@pytest.fixture(scope="module")
def wheel(source: Path) -> Path:
    return build(source, source.parent / "wheel", "wheel", REVISION)


@pytest.fixture(scope="module")
def sdist(source: Path) -> Path:
    return build(source, source.parent / "sdist", "sdist", REVISION)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A working directory with modules of the bare names; none of them is imported."""
    path = tmp_path / "work"
    for name in HOSTILE:
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(
            "open(__file__ + '.imported', 'w').close()\nraise RuntimeError(__file__)\n"
        )
    yield path
    assert list(path.rglob("*.imported")) == []


def modules_of(source: Path) -> set[str]:
    """What has to be published: every file of the packages, under the name that it is imported by."""
    roots = {"quorumd": source / "quorumd", **{f"quorumd/{n}": source / n for n in LINKED}}
    files = {
        f"{prefix}/{path.relative_to(root)}"
        for prefix, root in roots.items()
        for path in root.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    return {*files, "pyspark_quorumd.py", "quorumd/revision.txt"}


def metadata_of(wheel: Path) -> Message:
    files = contents(wheel)
    (name,) = (name for name in files if name.endswith(".dist-info/METADATA"))
    return Parser().parsestr(files[name].decode())


def test_the_wheel_holds_every_file_of_the_packages_and_nothing_else(
    source: Path, wheel: Path
) -> None:
    files = contents(wheel)
    metadata = f"quorumd-{quorumd.__version__}.dist-info/"
    published = {name for name in files if not name.startswith(metadata)}
    assert published == modules_of(source)
    assert {name.partition("/")[0] for name in published} == {"pyspark_quorumd.py", "quorumd"}
    for name in (
        "quorumd/py.typed",
        "quorumd/raft/py.typed",
        "quorumd/config/controller.example.yaml",
        "quorumd/server/page/static/index.html",
    ):
        assert name in published
    assert files["quorumd/revision.txt"].decode().strip() == REVISION
    assert f"{metadata}licenses/LICENSE" in files


def test_the_metadata_says_what_the_package_is_and_where_it_runs(wheel: Path) -> None:
    about = metadata_of(wheel)
    assert (about["Name"], about["Version"]) == ("quorumd", quorumd.__version__)
    assert (about["License-Expression"], about["License-File"]) == ("Apache-2.0", "LICENSE")
    assert "KRaft quorum" in about["Summary"]
    assert {"kraft", "raft"} <= {*about["Keywords"].split(",")}
    assert {*about.get_all("Provides-Extra", [])} == {"dev", "spark"}
    classifiers = about.get_all("Classifier", [])
    # With a license expression there is to be no classifier of one (PEP 639).
    assert [each for each in classifiers if each.startswith("License ::")] == []
    assert {"Operating System :: POSIX :: Linux", "Typing :: Typed"} <= {*classifiers}
    python = "Programming Language :: Python :: 3."
    versions = [each.removeprefix(python) for each in classifiers if each.startswith(python)]
    operations = (ROOT / "docs" / "operations.md").read_text()
    (run,) = re.findall(r"^\| run \|(.+)\|$", operations, re.MULTILINE)
    later = [version.strip().split(".")[1] for version in run.split("|")]
    oldest = about["Requires-Python"].removeprefix(">=3.")
    assert versions == [oldest, *later]


def test_the_page_of_the_package_renders_and_links_to_nothing_that_is_not_there(
    wheel: Path,
) -> None:
    about = metadata_of(wheel)
    assert about["Description-Content-Type"] == "text/markdown"
    page = markdown.render(about.get_payload())
    assert page is not None
    assert '<h1 id="user-content-quorumd">quorumd' in page
    assert "<table>" in page
    assert "<td><code>docs/operations.md</code></td>" in page
    assert "the demo after its leader was killed (<code>docs/demo.svg</code>)" in page
    targets = re.findall(r'(?:href|src)="([^"]*)"', page)
    assert [target for target in targets if not target.startswith(("https://", "#"))] == []


def test_the_sdist_holds_the_same_and_builds_the_same_wheel(
    source: Path, wheel: Path, sdist: Path, tmp_path: Path
) -> None:
    with tarfile.open(sdist) as archive:
        members = [member for member in archive.getmembers() if not member.isdir()]
    assert all(member.isfile() for member in members), "no links: not every system unpacks them"
    names = {member.name.partition("/")[2] for member in members}
    about = {"LICENSE", "PKG-INFO", "README.md", "pyproject.toml", "setup.cfg", "setup.py"}
    about.add("MANIFEST.in")
    about |= {
        f"native/{it}.py" for it in ("constructors", "packs", "reads", "sources", "written_out")
    }
    published = {name for name in names if not name.startswith("quorumd.egg-info/")}
    assert published == modules_of(source) | about
    # Without git and without the variable: the sdist knows the commit.
    again = build(unpacked(sdist, tmp_path / "unpacked"), tmp_path / "wheel", "wheel")
    assert again.name == wheel.name
    assert contents(again) == contents(wheel)


def test_a_build_takes_nothing_from_an_earlier_one(tmp_path: Path) -> None:
    source = copy_sources(tmp_path / "source")
    gone = source / "wire" / "gone.py"
    gone.write_text("")
    assert "quorumd/wire/gone.py" in contents(build(source, tmp_path / "first", "wheel", REVISION))
    gone.unlink()
    again = contents(build(source, tmp_path / "again", "wheel"))
    assert {"quorumd/wire/gone.py", "quorumd/revision.txt"} & again.keys() == set()


@pytest.mark.live
@pytest.mark.timeout(300)
def test_an_installed_wheel_works_beside_modules_of_the_bare_names(
    wheel: Path, folder: Path, tmp_path: Path
) -> None:
    installed = Installation(tmp_path / "venv", wheel, folder)
    check = (
        "import quorumd; print(quorumd.__file__, [getattr(quorumd, n) for n in quorumd.__all__])"
    )
    assert installed.run("python", "-c", check).startswith(f"{tmp_path}/venv/lib/")
    for program in ("quorumd", "quorumctl", "quorumd-pipeline"):
        version = f"{program}, version {quorumd.__version__} (pure, commit {REVISION})\n"
        assert installed.run(program, "--version") == version
    configure_demo(folder / "demo-data")
    installed.run("quorumd", "demo", "--detach")
    try:
        server = first_server(folder)
        installed.run("quorumctl", "append", "-b", server, "one", "two")
        taken = installed.run("quorumctl", "snapshot", "-b", server)
        assert len(list(folder.glob("demo-data/node*/__cluster_metadata-0/*.checkpoint"))) == 3, (
            taken
        )
        assert installed.run("python", "-c", PYTHON_CLIENT, server) == "b'blue'\n"
    finally:
        installed.run("quorumd", "demo", "--stop")


@pytest.mark.live
def test_an_sdist_is_installed_as_the_wheel_is(
    sdist: Path, wheel: Path, folder: Path, tmp_path: Path
) -> None:
    installed = Installation(tmp_path / "venv", sdist, folder)
    files = {name: data for name, data in contents(wheel).items() if ".dist-info/" not in name}
    assert {name: (installed.site / name).read_bytes() for name in files} == files
    for program in ("quorumd", "quorumctl", "quorumd-pipeline"):
        version = f"{program}, version {quorumd.__version__} (pure, commit {REVISION})\n"
        assert installed.run(program, "--version") == version


@pytest.mark.live
@pytest.mark.timeout(300)
def test_an_installed_wheel_brings_fixtures_for_pytest(
    wheel: Path, folder: Path, tmp_path: Path
) -> None:
    installed = Installation(tmp_path / "venv", wheel, folder, extra="dev")
    (folder / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    (folder / "test_fixtures.py").write_text(FIXTURES)
    options = ("-p", "no:cacheprovider", "-p", "no:randomly")
    said = installed.run("python", "-m", "pytest", *options, "-v", timeout_s=100)
    assert "2 passed" in said, said


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_spark_finds_the_data_source_of_an_installed_wheel(
    wheel: Path, folder: Path, tmp_path: Path
) -> None:
    installed = Installation(tmp_path / "venv", wheel, folder, extra="spark")
    configure_demo(folder / "demo-data")
    installed.run("quorumd", "demo", "--detach")
    try:
        server = first_server(folder)
        installed.run("quorumctl", "append", "-b", server, "one", "two")
        said = installed.run("python", "-c", SPARK, server, timeout_s=200)
        assert said.splitlines()[-1] == "[b'one', b'two']"
    finally:
        installed.run("quorumd", "demo", "--stop")


def first_server(folder: Path) -> str:
    """Where the first node of the demo listens."""
    lines = (folder / "demo-data" / "node1.yaml").read_text().splitlines()
    (listener,) = (line for line in lines if line.startswith("listeners:"))
    return listener.partition("://")[2]
