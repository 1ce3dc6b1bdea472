"""Prometheus metrics: HTTP requests counted by this process, everything else read from SQL and Redis."""
