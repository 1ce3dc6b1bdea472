"""Erasure requests."""
