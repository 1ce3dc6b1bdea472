"""Tests that kill processes at bad moments."""
