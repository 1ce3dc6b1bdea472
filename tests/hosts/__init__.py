"""Tests on several simulated hosts. Each is a network namespace of this machine with its own process tree."""
