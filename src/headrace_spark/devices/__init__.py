"""Tables to devices: the outbox, the sink, and the publisher behind it."""

from __future__ import annotations

from headrace_spark.base.spark_version import require_spark

require_spark()
