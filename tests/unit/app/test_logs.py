"""The log has the kind and place of an error, never its message."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError

from app.db.session import Database

START = """
import asyncio, logging, threading
from app.core import logging as logs
from app.core.settings import Settings

def burst():
    raise ValueError("canary")

logs.configure(Settings())
"""


def _logged(code: str) -> list[dict[str, Any]]:
    """Return the log lines of a new process, because logging is configured once per process."""
    ended = subprocess.run([sys.executable, "-c", START + code], capture_output=True, text=True, check=False)
    assert "canary" not in ended.stderr
    return [json.loads(line) for line in ended.stderr.splitlines()]


def test_a_librarys_traceback_loses_its_message() -> None:
    (line,) = _logged("""
try:
    burst()
except ValueError:
    logging.getLogger("uvicorn.error").exception("Exception in ASGI application\\n")
""")
    assert (line["event"], line["kind"]) == ("Exception in ASGI application", "ValueError")
    assert line["where"][-1].endswith("burst")


def test_a_lost_tasks_error_is_not_shown() -> None:
    (line,) = _logged("""
async def lost():
    burst()

async def main():
    asyncio.create_task(lost())
    await asyncio.sleep(0)  # the task runs and ends

asyncio.run(main())
""")
    assert line["event"] == "Task exception was never retrieved"


def test_an_uncaught_error_loses_its_message() -> None:
    lines = _logged("thread = threading.Thread(target=burst); thread.start(); thread.join(); burst()")
    assert [line["kind"] for line in lines] == ["ValueError", "ValueError"]


def test_a_database_error_does_not_repeat_what_was_sent(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'x.db'}")
    with pytest.raises(SQLAlchemyError) as caught, database.writing() as session:
        session.execute(text("INSERT INTO nowhere VALUES (:subject)"), {"subject": "canary"})
    assert "canary" not in str(caught.value)
    database.close()
