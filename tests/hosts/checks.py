"""Checks after all faults, from the point of view of users and of an auditor."""

from pathlib import Path

from sqlalchemy import select

from app.db.paths import ATTEMPTS
from app.db.states import BatchState, VersionState
from app.db.tables import Batch, Certificate, DatasetPart, LogHead, Version
from app.dispatcher import orphan_sweep
from lethe import Lethe
from lethe.certificate.pack import EarlierHead
from lethe.certificate.verify import verify
from tests.hosts import history
from tests.hosts.cluster import Cluster
from tests.hosts.people import People


def check_nothing_lost_and_nothing_twice(cluster: Cluster, people: People) -> None:
    """Check that every acknowledged erasure was completed exactly once."""
    for gateway in cluster.named("gateway"):
        with cluster.client(gateway) as lethe:
            erasures = list(lethe.erasures.list())
        assert {erasure.id for erasure in erasures} == set(people.acknowledged)
        assert len(erasures) == len(people.acknowledged)
        assert {erasure.state for erasure in erasures} == {"completed"}
        for task in (task for erasure in erasures for task in erasure.tasks):
            assert task.outcomes == {"erased": 2}, task
    history.check_one_batch_at_a_time(cluster.services)
    history.check_attempts_follow_each_other(cluster.services)
    _check_versions(cluster)
    _check_files(cluster)


def _check_versions(cluster: Cluster) -> None:
    """Check for one chain per model, one version and certificate per batch, one leaf per certificate."""
    with cluster.services.database.reading() as session:
        batches = session.scalars(select(Batch)).all()
        versions = session.scalars(select(Version).order_by(Version.number)).all()
        certificates = session.scalars(select(Certificate)).all()
        head = session.scalars(select(LogHead)).one()
    assert {batch.state for batch in batches} == {BatchState.COMPLETED}
    released = [version for version in versions if version.number > 0]
    assert sorted(str(version.batch_id) for version in released) == sorted(str(batch.id) for batch in batches)
    assert {version.certificate_id for version in released} == {item.id for item in certificates}
    assert len(released) == len(certificates) == head.size
    assert sorted(item.log_index for item in certificates) == list(range(head.size))
    for model in {version.model_id for version in versions}:
        chain = [version for version in versions if version.model_id == model]
        assert [version.number for version in chain] == list(range(len(chain)))
        assert [v.state for v in chain[:-1]] == [VersionState.PURGED] * (len(chain) - 1)
        assert chain[-1].state == VersionState.CURRENT


def _check_files(cluster: Cluster) -> None:
    """Nothing that dead or fenced attempts wrote is left in the storage."""
    orphan_sweep.sweep(cluster.services)
    with cluster.services.database.reading() as session:
        kept = set(session.scalars(select(DatasetPart.path).where(DatasetPart.last_generation.is_(None))))
        kept |= set(session.scalars(select(Version.path).where(Version.state == VersionState.CURRENT)))
    left = set(cluster.services.storage.list(ATTEMPTS))
    assert left == {path for path in kept if path.startswith(f"{ATTEMPTS}/")}


def check_all_certificates(lethe: Lethe, models: list[str], head_kept: str, folder: Path) -> int:
    """Verify every certificate offline and return how many there are.

    Also check that the log has only grown since the tree head `head_kept`. Superseded weights are purged, so
    their certificates are verified without the file.
    """
    keys = lethe.log.keys()
    proof = lethe.log.consistency(int(head_kept.splitlines()[1]))
    since = EarlierHead.model_validate({"checkpoint": head_kept, "path": proof.path})
    checked = 0
    for model in models:
        file = lethe.versions.download(model, folder / f"{model}.safetensors")
        for version in lethe.versions.list(model):
            if version.certificate_id is None:  # version 0, as registered
                continue
            pack = lethe.certificates.pack(version.certificate_id).to_bytes()
            current = version.state == "current"
            report = verify(pack, weights=file if current else None, keys=keys, since=since)
            assert report.verdict == ("verified" if current else "verified without the model file"), (
                report.failed
            )
            checked += 1
    return checked
