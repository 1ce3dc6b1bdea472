"""What someone finds who reads the files or tables of the database."""

import subprocess
from pathlib import Path

from sqlalchemy import text

from app.db.types import Base
from app.services import Services


def database_bytes(services: Services) -> bytes:
    """Return the bytes of SQLite's file and WAL, free pages included, or every row of PostgreSQL's tables."""
    if services.database.is_sqlite:
        file = Path(services.settings.database.removeprefix("sqlite:///"))
        # Reading in this process would drop its locks on the files (POSIX), and another process that closes
        # the database would then delete the write-ahead log under it.
        parts = sorted(map(str, file.parent.glob(file.name + "*")))
        return subprocess.run(["cat", *parts], capture_output=True, check=True).stdout
    with services.database.reading() as session:
        rows = [
            bytes(value) if isinstance(value, bytes | memoryview) else str(value).encode()
            for table in Base.metadata.sorted_tables
            for row in session.execute(text(f'SELECT * FROM "{table.name}"'))
            for value in row
        ]
    return b"\0".join(rows)
