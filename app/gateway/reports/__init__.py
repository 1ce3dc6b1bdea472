"""Evaluations, audits, membership tests and advice, measured by a worker."""
