"""A job for spark-submit: counts trace rows with our data source, whose Python runs on the executors."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from georelay.trace.kinds import TraceKind
from sla.jobs.verify import VerifyRequest, run_verify
from sla.sources.arrowfs import read_over_arrow

files = run_verify(VerifyRequest(traces=Path(sys.argv[1])))
spark = SparkSession.builder.getOrCreate()
counts = {kind.value: read_over_arrow(spark, files, kind).count() for kind in (TraceKind.LEDGER, TraceKind.PROBE)}
sys.stdout.write(json.dumps({"master": spark.sparkContext.master} | counts) + "\n")
spark.stop()
