"""Steps of the job `metrics`: sessions, deliveries, traffic and usage from ranges of the journal."""
