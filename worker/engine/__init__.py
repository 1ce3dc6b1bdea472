"""Numerical engine: pure functions of tensors, without I/O, settings, logging or database access."""
