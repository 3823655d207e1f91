"""Migrations of the directory's schema, in the order of their revisions; alembic reads every module here."""
