"""The journal as a source of Spark, batch and stream, local and over HTTP."""

from __future__ import annotations

from headrace_spark.base.spark_version import require_spark

require_spark()
