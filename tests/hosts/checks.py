"""What must be true after everything: as its users see it, and as an auditor does."""

from pathlib import Path

from sqlalchemy import select

from app import orphans
from app.db.states import BatchState, VersionState
from app.db.tables import Batch, Certificate, DatasetPart, LogHead, Version
from certificate.pack import EarlierHead
from certificate.verify import verify
from client import Lethe
from tests.hosts import history
from tests.hosts.cluster import Cluster
from tests.hosts.people import People


def check_nothing_lost_and_nothing_twice(cluster: Cluster, people: People) -> None:
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
    """One chain per model; one version and one certificate per batch; one leaf per certificate."""
    with cluster.services.database.reading() as session:
        batches = session.scalars(select(Batch)).all()
        versions = session.scalars(select(Version).order_by(Version.number)).all()
        certificates = session.scalars(select(Certificate)).all()
        head = session.scalars(select(LogHead)).one()
    assert {batch.state for batch in batches} == {BatchState.COMPLETED}
    made = [version for version in versions if version.number > 0]
    assert sorted(str(version.batch_id) for version in made) == sorted(str(batch.id) for batch in batches)
    assert {version.certificate_id for version in made} == {item.id for item in certificates}
    assert len(made) == len(certificates) == head.size
    assert sorted(item.log_index for item in certificates) == list(range(head.size))
    for model in {version.model_id for version in versions}:
        chain = [version for version in versions if version.model_id == model]
        assert [version.number for version in chain] == list(range(len(chain)))
        assert [v.state for v in chain[:-1]] == [VersionState.PURGED] * (len(chain) - 1)
        assert chain[-1].state == VersionState.CURRENT


def _check_files(cluster: Cluster) -> None:
    """Of all that dead and fenced attempts wrote, nothing stays."""
    orphans.sweep(cluster.services)
    with cluster.services.database.reading() as session:
        kept = set(session.scalars(select(DatasetPart.path).where(DatasetPart.last_generation.is_(None))))
        kept |= set(session.scalars(select(Version.path).where(Version.state == VersionState.CURRENT)))
    left = set(cluster.services.storage.list(orphans.ATTEMPTS))
    assert left == {path for path in kept if path.startswith(f"{orphans.ATTEMPTS}/")}


def check_all_certificates(lethe: Lethe, models: list[str], head_kept: str, folder: Path) -> int:
    """Offline, from files, under keys fetched once; how many. The log has only grown since `head_kept`.

    A superseded file is purged: its certificate is verified without it.
    """
    keys = lethe.log.keys()
    proof = lethe.log.consistency(int(head_kept.splitlines()[1]))
    since = EarlierHead.model_validate({"checkpoint": head_kept, "path": proof.path})
    checked = 0
    for model in models:
        file = lethe.versions.download(model, folder / f"{model}.safetensors")
        for version in lethe.versions.list(model):
            if version.certificate_id is None:  # as registered
                continue
            pack = lethe.certificates.pack(version.certificate_id).to_bytes()
            current = version.state == "current"
            report = verify(pack, model=file if current else None, keys=keys, since=since)
            assert report.verdict == ("verified" if current else "verified without the model file"), (
                report.failed
            )
            checked += 1
    return checked
