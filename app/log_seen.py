"""The newest tree head that was seen, kept outside the database: no log is continued from before it.

A database that is put back to an earlier state has a shorter log. The next certificate would take a place
that another had before, under the same name, signed by the same key: two histories, and neither can be
trusted.
"""

import os
from pathlib import Path

from sqlalchemy.orm import Session

from app import logs
from app.bootstrap import Services
from app.db.tables import LogHead, LogNode
from app.settings import Settings
from certificate import merkle
from certificate.errors import LogProofInvalid
from certificate.note import Checkpoint, parse_checkpoint, parse_note

log = logs.get("log-seen")


class LogOlder(Exception):
    """The message is one line that an operator can act on."""


def check(session: Session, settings: Settings, note: str | None = None) -> None:
    """Raise unless the log contains the head that was seen; a head of another origin is another log's."""
    seen = read(note) if note is not None else remembered(settings)
    if seen is None or seen.size == 0 or seen.origin != settings.log_origin:
        return
    head = session.get(LogHead, 1)
    size = head.size if head is not None else 0
    if seen.size > size:
        raise LogOlder(
            f"the log {seen.origin} was seen with {seen.size} leaves, the database has {size}: it was put "
            "back to an earlier state; see `Backup and restore` in docs/operating.md"
        )
    if merkle.root(seen.size, lambda level, place: _node(session, level, place)) != seen.root:
        raise LogOlder(f"the log {seen.origin} is not the one that was seen with {seen.size} leaves")


def remember(services: Services) -> None:
    """Called when an attempt has ended: the file may lag behind the log, and never runs ahead of it."""
    settings = services.settings
    with services.database.reading() as session:
        head = session.get(LogHead, 1)
    if head is None or head.size == 0:
        return
    seen = remembered(settings)
    if seen is None or seen.size < head.size or seen.origin != settings.log_origin:
        try:
            write(settings.log_seen_path, head.note)
        except OSError as problem:  # the work is done and recorded all the same
            log.warning("tree head not kept", problem=type(problem).__name__)


def write(path: Path, note: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{os.getpid()}.new")
    draft.write_text(note)
    draft.replace(path)


def read(note: str) -> Checkpoint:
    try:
        return parse_checkpoint(parse_note(note)[0])
    except LogProofInvalid:
        raise LogOlder("what is said to have been seen is not a tree head") from None


def remembered(settings: Settings) -> Checkpoint | None:
    path = settings.log_seen_path
    return read(path.read_text()) if path.exists() else None


def _node(session: Session, level: int, place: int) -> bytes:
    return session.get_one(LogNode, (level, place)).hash
