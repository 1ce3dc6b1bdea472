"""Certificates, keys and the log."""
