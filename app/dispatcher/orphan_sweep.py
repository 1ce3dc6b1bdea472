"""Files nobody will come back for: of attempts that were killed, gave up, or wrote after their time."""

import re

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.bootstrap import Services
from app.db.paths import uploaded
from app.db.states import JobState, ModelState, VersionState
from app.db.tables import DatasetPart, HeldDraw, Job, Model, Version

ATTEMPTS = "attempts"
_UUID = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_OF_AN_ATTEMPT = re.compile(rf"{ATTEMPTS}/(?P<job>{_UUID})/(?P<token>{_UUID})(?:/\w[\w.-]*)+", re.ASCII)


def sweep(services: Services) -> int:
    """Delete what lies in an attempt's folder and is neither referred to nor being worked on; how many.

    The order makes it safe: files first, then who is at work, then what is referred to. An attempt that has
    ended by the second look has committed by then what the third one sees.
    """
    swept = _sweep_retired(services)
    found = services.storage.list(ATTEMPTS)
    if not found:
        return swept
    with services.database.reading() as session:
        working = {
            (str(job_id), str(token))
            for job_id, token in session.execute(
                select(Job.id, Job.token).where(Job.state.in_((JobState.QUEUED, JobState.RUNNING)))
            )
        }
        kept = _referred_to(session)
    orphans = [path for path in found if path not in kept and _is_over(path, working)]
    for path in orphans:
        services.storage.delete(path)
    return len(orphans) + swept


def _sweep_retired(services: Services) -> int:
    """A retired model holds nothing: this was on its way in, or its deletion was cut short."""
    with services.database.reading() as session:
        retired = session.scalars(select(Model.id).where(Model.state == ModelState.RETIRED)).all()
    left = [(path, model_id) for model_id in retired for path in services.storage.list(uploaded(model_id))]
    for model_id in {model_id for _, model_id in left}:
        services.storage.delete(uploaded(model_id))
    return len(left)


def _referred_to(session: Session) -> set[str]:
    there = Version.state != VersionState.PURGED
    paths = {*session.scalars(select(DatasetPart.path)), *session.scalars(select(Version.path).where(there))}
    for draft in session.scalars(select(HeldDraw.draft)):
        paths.add(draft["release"]["stored"]["path"])
        paths.update(part["stored"]["path"] for part in draft["swap"]["rewritten"])
    return paths


def _is_over(path: str, working: set[tuple[str, str]]) -> bool:
    """What is not named as an attempt names its files is not ours to delete: a file system's own, say."""
    named = _OF_AN_ATTEMPT.fullmatch(path)
    return named is not None and (named["job"], named["token"]) not in working
