"""One Spark session for all tests of the pipeline, and a live quorum that they share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from quorumd.pipeline.session import build_session
from tests.pipeline.quick_start import start_quickly
from tests.pipeline.spark_kafka_jars import spark_kafka_jars
from tests.support.live_cluster import Cluster, running_cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def quick_start() -> None:
    """Every JVM of Spark that is started from here on starts quickly."""
    start_quickly()


@pytest.fixture(scope="session")
def spark(quick_start: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Two cores, four tries a task; its warehouse and its log are in a folder of the test run.

    It compiles code of its queries, as Spark does where nothing is configured.
    """
    folder = tmp_path_factory.mktemp("spark")
    config = {
        "spark.sql.codegen.factoryMode": "FALLBACK",
        "spark.sql.codegen.wholeStage": "true",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder),
        "spark.driver.memory": "1g",
        "spark.jars": ",".join(map(str, _jars())),
    }
    session = build_session(
        "tests", master="local[2,4]", config=config, log_file=folder / "spark.log"
    )
    yield session
    session.stop()


def _jars() -> list[Path]:
    """Those of Spark's own Kafka source; only its own tests fail if they can't be had."""
    try:
        return spark_kafka_jars()
    except RuntimeError:
        return []


@pytest.fixture(scope="session")
def _shared_quorum(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("quorum")) as running:
        yield running


@pytest.fixture
def quorum(_shared_quorum: Cluster) -> Cluster:
    """Three nodes that run, whatever the test before did to them; the log is that of all tests."""
    _shared_quorum.start()
    _shared_quorum.wait_ready()
    return _shared_quorum
