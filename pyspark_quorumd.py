"""Module in which Spark finds the data source `quorumd`: it imports every module named `pyspark_*`.

A module of this kind that does not import makes every data source of Python invisible, so this one imports
next to nothing, and without Spark 4 it has no DefaultSource at all. See quorumd.pipeline.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

try:
    from pyspark.sql.datasource import DataSource
except ImportError:  # pragma: no cover (Spark before 4.0)
    DataSource = None  # type: ignore[assignment,misc]  # there is nothing to derive from then

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

    from quorumd.pipeline.source.options import Options

if DataSource is not None:

    class DefaultSource(DataSource):
        """format("quorumd"): the log of a live quorum (bootstrap.servers) or of files (path)."""

        def __init__(self, options: MutableMapping[str, str]) -> None:
            self._given = options

        @classmethod
        def name(cls) -> str:
            return "quorumd"

        def schema(self) -> StructType:
            """The columns of the table that the options name. Raises BadOption."""
            from quorumd.pipeline.source.columns import spark_schema

            return spark_schema(self._options().table)

        def reader(self, schema: StructType) -> DataSourceReader:
            """For spark.read. Raises BadOption."""
            from quorumd.pipeline.source.batch import QuorumdReader

            return QuorumdReader(self._options(), schema)

        def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 (Spark's name)
            """For spark.readStream. Raises BadOption, SparkMissing."""
            try:
                from quorumd.pipeline.source.stream import QuorumdStreamReader
            except ImportError as error:
                from quorumd.pipeline.errors import SparkMissing

                raise SparkMissing(
                    f"a stream of the log needs Spark 4.2 or newer: {error}"
                ) from None
            return QuorumdStreamReader(self._options(), schema)

        def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
            """For df.write: always BadOption, for the source only reads."""
            from quorumd.pipeline.errors import BadOption

            raise BadOption(
                'format("quorumd") only reads. Append records by quorumd.client, by quorumctl append, or by '
                'Spark\'s own format("kafka"), with the same bootstrap servers.'
            )

        def _options(self) -> Options:
            from quorumd.pipeline.source.options import parse_options

            return parse_options(dict(self._given))


def __getattr__(name: str) -> Any:
    raise AttributeError(f"module {__name__} has no {name}: is PySpark 4 installed?")
