"""The journal as a source of Spark, batch and stream, local and over HTTP."""
