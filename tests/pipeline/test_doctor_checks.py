"""What the doctor makes of versions and of what an executor has, without Spark."""

from __future__ import annotations

import pytest

from quorumd.pipeline import doctor
from quorumd.pipeline.errors import PipelineError
from quorumd.pipeline.executors import OF_A_ZIP, Executor
from quorumd.pipeline.session import has_executors
from quorumd.version import VERSION

OLDEST, NEWEST = doctor.SPARK_TESTED[0], doctor.SPARK_TESTED[-1]


@pytest.mark.pure
@pytest.mark.parametrize(
    ("version", "said"),
    [
        (f"{OLDEST}.0", f"{OLDEST}.0"),
        (f"{NEWEST}.1", f"{NEWEST}.1"),
        ("99.0.0", f"99.0.0 (tested: {' and '.join(doctor.SPARK_TESTED)})"),
    ],
)
def test_a_version_that_is_new_enough_is_all_right(
    monkeypatch: pytest.MonkeyPatch, version: str, said: str
) -> None:
    monkeypatch.setattr(doctor, "_package", lambda name: version)
    assert doctor._spark() == said


@pytest.mark.pure
@pytest.mark.parametrize("version", ["4.1.9", "3.5.0", "3.99.1"])
def test_an_older_one_is_not(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(doctor, "_package", lambda name: version)
    with pytest.raises(PipelineError, match=f"{version} is too old"):
        doctor._spark()


@pytest.mark.parametrize(
    ("version", "is_ok"), [(VERSION, True), (OF_A_ZIP, True), ("0.0.1", False)]
)
def test_a_host_has_this_version_or_gets_it_with_the_job(version: str, is_ok: bool) -> None:
    packages = (("quorumd", version), ("numpy", "2"))
    check = doctor._host(Executor("h", "/usr/bin/python", "3.11", packages, ()))
    assert (check.is_ok, check.name) == (is_ok, "host h")


def test_a_host_that_lacks_a_package_is_told_which_and_why() -> None:
    missing = (("crc32c", "ModuleNotFoundError: no such module"),)
    check = doctor._host(Executor("h", "/usr/bin/python", "3.11", (), missing))
    assert not check.is_ok
    assert "can't import crc32c (ModuleNotFoundError: no such module)" in check.detail


@pytest.mark.parametrize(
    ("master", "has"),
    [
        ("local", False),
        ("local[*]", False),
        ("local-cluster[2,1,1024]", True),
        ("spark://host:7077", True),
        ("yarn", True),
    ],
)
def test_tasks_run_beside_the_driver_or_in_it(master: str, has: bool) -> None:
    assert has_executors(master) is has
