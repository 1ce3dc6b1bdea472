"""The `lethe` command. To start fast, each command imports what it needs only when it runs."""
