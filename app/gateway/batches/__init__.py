"""Batches of erasures."""
