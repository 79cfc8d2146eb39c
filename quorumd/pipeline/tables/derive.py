"""The tables `state` and `key_history` brought up to where `records` is, from where they were."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorumd.pipeline.tables.manifests import newest
from quorumd.pipeline.tables.output import Output
from quorumd.pipeline.tables.reading import read_range, read_table
from quorumd.pipeline.tables.schemas import DERIVED, STATE
from quorumd.pipeline.tables.sink import NAME

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def refresh_state(spark: SparkSession, output: Output) -> bool:
    """Applies the records since the last call; False if there are none.

    Costs a pass over the keys, and over the records that are new. Raises RunReplaced, DamagedTables.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    log, state = newest(output.folder, "log"), newest(output.folder, "state")
    start = state.end_offset if state is not None else 0
    if log is None or log.end_offset == start:
        return False
    records = read_range(spark, output.folder, "records", start, log.end_offset)
    records = records.where("control_type is null and key is not null")
    new = records.select(*STATE.names, f.lit(True).alias("is_new"))
    old = read_table(spark, output.folder, "state").select("*", f.lit(False).alias("is_new"))
    by_key = Window.partitionBy("key").orderBy("offset")
    previous = f.lag(f.when(f.col("value").isNotNull(), f.col("offset"))).over(by_key)
    is_last = f.lead("offset").over(by_key).isNull()
    change = (
        f.when(f.col("value").isNull(), "DELETE")
        .when(f.col("previous_offset").isNull(), "CREATE")
        .otherwise("UPDATE")
    )
    in_state = f.when(f.col("is_last") & f.col("value").isNotNull(), f.lit("state"))
    in_history = f.when(f.col("is_new"), f.lit("key_history"))
    rows = (
        old.unionByName(new)
        .withColumns({"previous_offset": previous, "is_last": is_last})
        .withColumn("change", change)
        .withColumn("table", f.explode(f.array_compact(f.array(in_state, in_history))))
        .select(*DERIVED.names)
    )
    writer = rows.write.format(NAME).mode("append").option("folder", str(output.folder))
    writer.option("token", output.token).option("end", log.end_offset).save()
    return True
