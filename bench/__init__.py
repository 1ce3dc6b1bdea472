"""Benchmarks and the demonstration."""
