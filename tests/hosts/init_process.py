"""Process 1 of a host: keeps one program running, as an init system would, and buries whoever is left alone.

python keeper.py HOSTNAME PROGRAM ARGUMENT …
"""

import os
import socket
import sys
import time

PAUSE_SECONDS = 0.5


def main(name: str, *command: str) -> None:
    socket.sethostname(name)
    while True:
        running = os.posix_spawn(command[0], command, os.environ)
        while os.wait()[0] != running:
            pass
        time.sleep(PAUSE_SECONDS)


if __name__ == "__main__":
    main(*sys.argv[1:])
