"""What every job stands on: the Spark session, settings, errors, progress, queries."""
