"""Random faults on a running service: `python -m tests.chaos` (docs/operating.md)."""
