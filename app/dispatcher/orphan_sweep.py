"""Deletion of orphaned files, left behind by attempts that were killed, given up or too late."""

import re

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.db.draws import files_of_draft
from app.db.paths import ATTEMPTS, SKETCHES, sketch, uploaded
from app.db.states import JobState, ModelState, VersionState
from app.db.tables import DatasetPart, DrawRecord, Job, Model, Version
from app.services import Services

_UUID = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_OF_A_VERSION = re.compile(rf"{SKETCHES}/{_UUID}/{_UUID}", re.ASCII)
_OF_AN_ATTEMPT = re.compile(rf"{ATTEMPTS}/(?P<job>{_UUID})/(?P<token>{_UUID})(?:/\w[\w.-]*)+", re.ASCII)


def sweep(services: Services) -> int:
    """Delete files of attempts that have ended and that nothing refers to. Return how many there were.

    The order makes this safe: list the files, then the running attempts, then the files that are referred to.
    An attempt that has ended by the second step has committed what the third one reads.
    """
    swept = _sweep_retired(services) + _sweep_sketches(services) + services.data_keys.sweep_files()
    paths = services.storage.list(ATTEMPTS)
    if not paths:
        return swept
    with services.database.reading() as session:
        working = {
            (str(job_id), str(token))
            for job_id, token in session.execute(
                select(Job.id, Job.token).where(Job.state.in_((JobState.QUEUED, JobState.RUNNING)))
            )
        }
        kept = _referred_to(session)
    orphans = [path for path in paths if path not in kept and _is_over(path, working)]
    for path in orphans:
        services.storage.delete(path)
    return len(orphans) + swept


def _sweep_retired(services: Services) -> int:
    """Delete uploads of retired models. They arrived during the retirement, or its deletion was cut short."""
    with services.database.reading() as session:
        retired = session.scalars(select(Model.id).where(Model.state == ModelState.RETIRED)).all()
    left = [(path, model_id) for model_id in retired for path in services.storage.list(uploaded(model_id))]
    for model_id in {model_id for _, model_id in left}:
        services.storage.delete(uploaded(model_id))
    return len(left)


def _sweep_sketches(services: Services) -> int:
    """Delete curvature sketches of versions that are not current, such as those of retired models."""
    stored = services.storage.list(SKETCHES)
    if not stored:
        return 0
    with services.database.reading() as session:
        current = session.execute(
            select(Version.model_id, Version.id)
            .join(Model, Model.id == Version.model_id)
            .where(Version.state == VersionState.CURRENT, Model.state != ModelState.RETIRED)
        )
        kept = {sketch(model_id, version_id) for model_id, version_id in current}
    stale = [path for path in stored if path not in kept and _OF_A_VERSION.fullmatch(path)]
    for path in stale:
        services.storage.delete(path)
    return len(stale)


def _referred_to(session: Session) -> set[str]:
    stored = Version.state != VersionState.PURGED
    features = select(DatasetPart.features_path).where(DatasetPart.features_path.is_not(None))
    paths: set[str] = {
        *session.scalars(select(DatasetPart.path)),
        *(path for path in session.scalars(features) if path is not None),
        *session.scalars(select(Version.path).where(stored)),
    }
    for draft in session.scalars(select(DrawRecord.draft)):
        paths.update(file.path for file in files_of_draft(draft))
    return paths


def _is_over(path: str, working: set[tuple[str, str]]) -> bool:
    """Return whether this is a file of an attempt that has ended.

    Files with other names are left alone. They may belong to the file system itself.
    """
    match = _OF_AN_ATTEMPT.fullmatch(path)
    return match is not None and (match["job"], match["token"]) not in working
