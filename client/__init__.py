"""The Python client and the `lethe` command."""
