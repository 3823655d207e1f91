"""`python -m headrace_spark`: the same as `headrace pipeline`."""

from __future__ import annotations

from headrace_spark.cli import pipeline

if __name__ == "__main__":
    pipeline(prog_name="headrace pipeline")
