"""The pipeline of headrace on Apache Spark: the journal as a source, Delta tables as the result.

    jars        which jars PySpark needs beside its own, and where they lie
    settings    typed, frozen settings of sessions and jobs
    session     the SparkSession that all jobs use
    schema      the columns of the schemas: messages, events, progress
    decode      journal batches -> Arrow record batches: chunk, message_columns, event_rows, progress_rows
    source      `headrace`, a Python Data Source, batch and stream; `pyspark_headrace` lets Spark find it
    lake        the Delta tables below one folder
    runner      runs a job in a session of its own; `headrace pipeline` calls it
    jobs        one module a job; a job reads, applies steps (DataFrame -> DataFrame), writes

Of the broker it uses the record format, the read side of the journal and the MQTT property codec, nothing
else.
"""

from __future__ import annotations
