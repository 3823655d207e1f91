"""What Spark finds by itself: `spark.read.format("headrace")` without a registration.

Spark 4 imports every package on its Python path whose name begins with `pyspark_`, at the first use of a Python data
source, and registers the class that it calls `DefaultSource`.
"""

from __future__ import annotations

from headrace_spark.base.discovery import DefaultSource

__all__ = ["DefaultSource"]
