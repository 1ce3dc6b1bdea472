"""Process 1 of a host: restarts one program whenever it ends, and reaps orphans, as an init system would.

python init_process.py HOSTNAME PROGRAM ARGUMENT …
"""

import os
import socket
import sys
import time

PAUSE_SECONDS = 0.5


def main(name: str, *command: str) -> None:
    """Set the host name and keep the command running."""
    socket.sethostname(name)
    while True:
        running = os.posix_spawn(command[0], command, os.environ)
        while os.wait()[0] != running:
            pass
        time.sleep(PAUSE_SECONDS)


if __name__ == "__main__":
    main(*sys.argv[1:])
