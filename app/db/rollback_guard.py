"""A guard against continuing a certificate log that was rolled back.

A database that is restored to an earlier state has a shorter log. The next certificate would take an index
that another one already has, under the same origin and signed by the same key: two histories, neither of
which can be trusted. So workers keep the newest tree head they have seen in a file outside the database, and
refuse to work on a log that does not contain it.
"""

from pathlib import Path

from sqlalchemy.orm import Session

from app.core import logging
from app.core.clock import new_id
from app.core.settings import Settings
from app.db import log_store
from app.db.session import Database
from lethe.certificate.errors import LogProofInvalid
from lethe.certificate.tree_head import TreeHead, parse_tree_head

log = logging.get_logger("rollback-guard")


class LogOlder(Exception):
    """Raised when the log does not contain a tree head seen before. The message is one line for operators."""


def check(session: Session, settings: Settings, tree_head: str | None = None) -> None:
    """Raise `LogOlder` unless the log contains a tree head that was seen before.

    Check the given signed tree head, or the one in this machine's file. A head of another origin belongs to
    another log and is ignored.
    """
    seen = read(tree_head) if tree_head is not None else remembered(settings)
    if seen is None or seen.size == 0 or seen.origin != settings.log_origin:
        return
    head = log_store.log_head(session)
    size = head.size if head is not None else 0
    if seen.size > size:
        raise LogOlder(
            f"the log {seen.origin} was seen with {seen.size} leaves, but the database has {size}: it was "
            "restored to an earlier state; see `Backup and restore` in docs/operating.md"
        )
    if _root_at(session, seen.size) != seen.root:
        raise LogOlder(
            f"the log {seen.origin} in the database is not the one that was seen with {seen.size} leaves; "
            "see `Backup and restore` in docs/operating.md"
        )


def remember(database: Database, settings: Settings) -> None:
    """Write the newest tree head to this machine's file if it is newer than the one there.

    Call this after an attempt has ended. The file may lag behind the log but never runs ahead of it.
    """
    with database.reading() as session:
        head = log_store.log_head(session)
    if head is None or head.size == 0:
        return
    seen = remembered(settings)
    if seen is None or seen.size < head.size or seen.origin != settings.log_origin:
        try:
            write(settings.log_seen_path, head.tree_head)
        except OSError as problem:  # the attempt's work is committed all the same
            log.warning("could not save the tree head", problem=type(problem).__name__)


def write(path: Path, tree_head: str) -> None:
    """Replace the file with this signed tree head, atomically.

    Drafts have random names: workers in several containers may share the file and have the same process id.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{new_id().hex}.new")
    try:
        draft.write_text(tree_head)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def read(tree_head: str) -> TreeHead:
    """Parse a signed tree head. Raise `LogOlder` if the text is not one."""
    try:
        return parse_tree_head(tree_head)
    except LogProofInvalid:
        raise LogOlder("the text given as the newest tree head is not a signed tree head") from None


def remembered(settings: Settings) -> TreeHead | None:
    """Return the tree head in this machine's file, or None if there is no file."""
    path = settings.log_seen_path
    return read(path.read_text()) if path.exists() else None


def _root_at(session: Session, size: int) -> bytes | None:
    try:
        return log_store.root_at(session, size)
    except KeyError:  # a node is missing: the stored tree is damaged
        return None
