"""Many hosts: each a network namespace with a process tree of its own, on this machine."""
