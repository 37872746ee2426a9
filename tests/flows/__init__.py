"""Flows on a throw-away Prefect server."""
