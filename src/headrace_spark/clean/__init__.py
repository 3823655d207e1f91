"""Steps of the job `clean`: payloads by schema."""
