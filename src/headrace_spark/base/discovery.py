"""The source as Spark finds it by itself (`pyspark_headrace`), wherever headrace is installed.

Spark gives up all Python data sources of a session when the import of one fails. So this module can always be imported:
where the source cannot run, a class of the same name takes its place, which says why as soon as it is used.
"""

from __future__ import annotations

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from headrace_spark.base.errors import EngineMissing, PipelineError


def load_source() -> type[DataSource]:
    """Return the source `headrace`. Raises EngineMissing where this Spark, or what is installed, will not do."""
    try:
        from headrace_spark.source.source import HeadraceDataSource
    except ModuleNotFoundError as error:
        raise EngineMissing(f"{error.name} is not installed: pip install 'headrace[spark]'") from None
    except ImportError as error:
        raise EngineMissing(f"{error}: install headrace[spark] anew") from None
    return HeadraceDataSource


class RefusedSource(DataSource):
    """Stands for the source where that cannot run."""

    @classmethod
    def name(cls) -> str:
        return "headrace"

    def schema(self) -> StructType:
        """Return the schema, for which every query asks first. Raises EngineMissing."""
        return load_source()(self.options).schema()  # type: ignore[return-value]


def usable_source() -> type[DataSource]:
    """Return the source, or what refuses in its place."""
    try:
        return load_source()
    except PipelineError:
        return RefusedSource


DefaultSource = usable_source()
