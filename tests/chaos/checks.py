"""Checks after all faults, from the point of view of customers, an auditor and someone with the disk."""

import io
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from app.dispatcher import orphan_sweep
from lethe import Lethe
from lethe.certificate.pack import EarlierHead
from lethe.certificate.verify import verify
from tests import eventually
from tests.chaos.load import MODELS, Customer, rows
from tests.chaos.service import Service
from tests.hosts import history
from tests.integration.database_files import database_bytes

SCRATCH_SECONDS = 60.0
Finding = str


def check_requests(lethe: Lethe, customers: list[Customer]) -> Iterator[Finding]:
    """Check that the service knows every acknowledged request and no other, and completed each once."""
    acknowledged = Counter(erasure for customer in customers for erasure in customer.acknowledged)
    yield from (f"two requests got the id {erasure}" for erasure, n in acknowledged.items() if n > 1)
    erasures = {erasure.id: erasure for erasure in lethe.erasures.list()}
    yield from (
        f"request {each} was acknowledged and is unknown" for each in acknowledged if each not in erasures
    )
    yield from (
        f"request {each} exists and was never acknowledged" for each in erasures if each not in acknowledged
    )
    for erasure in erasures.values():
        outcomes = [task.outcomes for task in erasure.tasks]
        if erasure.state != "completed" or outcomes != [{"erased": 2}]:
            yield f"request {erasure.id} is {erasure.state} with {outcomes}"


def check_versions(lethe: Lethe) -> Iterator[Finding]:
    """Check for one chain of versions per model, each with the requests that it completed."""
    for model in MODELS:
        versions = sorted(version.number for version in lethe.versions.list(model))
        if versions != list(range(len(versions))):
            yield f"model {model} has the versions {versions}"
        batches = {
            task.version
            for erasure in lethe.erasures.list(model=model)
            for task in erasure.tasks
            if task.version is not None
        }
        if batches != set(versions[1:]):
            yield f"model {model} has versions without a request, or requests without a version"


def check_history(service: Service) -> Iterator[Finding]:
    """Check that a model had one batch at a time, and that each batch was published once."""
    try:
        history.check_attempts_follow_each_other(service.services)
        history.check_one_batch_at_a_time(service.services)
    except AssertionError as problem:
        yield f"the history of the batches is wrong: {problem}"


def check_certificates(lethe: Lethe, heads: Iterable[str], folder: Path) -> Iterator[Finding]:
    """Verify the newest pack of each model, and that the log has only grown since every earlier tree head."""
    keys = lethe.log.keys()
    for model in MODELS:
        current = next(version for version in lethe.versions.list(model) if version.state == "current")
        if current.certificate_id is None:
            continue
        file = lethe.versions.download(model, folder / f"{model}.safetensors")
        pack = lethe.certificates.pack(current.certificate_id).to_bytes()
        for head in heads:
            proof = lethe.log.consistency(int(head.splitlines()[1]))
            since = EarlierHead.model_validate({"checkpoint": head, "path": proof.path})
            report = verify(pack, weights=file, keys=keys, since=since)
            if report.verdict != "verified":
                yield f"the certificate of model {model} is {report.verdict}: {report.failed}"


def check_scratch(service: Service) -> Iterator[Finding]:
    """Check that no scratch folder is left. A killed worker's are deleted when the next one starts."""
    scratch = service.settings.data_dir / "scratch"
    try:
        eventually(lambda: not list(scratch.glob("*/")), within=SCRATCH_SECONDS)
    except AssertionError:
        yield f"{len(list(scratch.glob('*/')))} scratch folders are left"


def check_disk(service: Service, customers: list[Customer]) -> Iterator[Finding]:
    """Search every file and table for erased people, their rows, and weights without noise.

    The sweep that a dispatcher runs once a minute runs first.
    """
    orphan_sweep.sweep(service.services)
    erased = {
        person.encode()
        for customer in customers
        for people in customer.acknowledged.values()
        for person in people
    }
    forbidden = _erased_numbers(customers) | _witnessed_numbers(service)
    database = database_bytes(service.services)
    yield from search("the database", database, erased, forbidden)
    for path in sorted(service.folder.rglob("*")):
        if path.is_file() and not _is_searched_elsewhere(service, path):
            yield from search(str(path.relative_to(service.folder)), _readable(path), erased, forbidden)


def _is_searched_elsewhere(service: Service, path: Path) -> bool:
    """Return whether this is a witness, or a file of the database, whose content is read from its tables."""
    others = [service.witnesses, *([service.postgresql.data] if service.postgresql else [])]
    return any(path.is_relative_to(other) for other in others) or path.name.startswith("lethe.db")


def _readable(path: Path) -> bytes:
    """Return a file, and the columns of a Parquet part, which are compressed."""
    content = path.read_bytes()
    if not content.startswith(b"PAR1"):
        return content
    table = pq.read_table(io.BytesIO(content))
    subjects = "\n".join(table.column("subject_id").to_pylist()).encode()
    features = np.array(table.column(2).to_pylist(), dtype=np.float64).tobytes()
    return subjects + b"\n" * (-len(subjects) % 8) + features


def search(place: str, content: bytes, people: set[bytes], numbers: set[int]) -> Iterator[Finding]:
    """Search one file for identifiers, and for the bits of numbers at any offset."""
    if people & set(re.findall(rb"[a-z]+-person-\d{6}", content)):
        yield f"{place} contains the identifier of an erased person"
    wanted = np.fromiter(numbers, dtype=np.uint64, count=len(numbers))
    for offset in range(8):
        length = (len(content) - offset) // 8
        if length > 0:
            values = np.frombuffer(content, dtype="<u8", count=length, offset=offset)
            if np.isin(values, wanted).any():
                yield f"{place} contains a row of an erased person, or a weight without noise"
                return


def _erased_numbers(customers: list[Customer]) -> set[int]:
    """Return the bits of the features of all erased people."""
    numbers: set[int] = set()
    for customer in customers:
        erased = {person for people in customer.acknowledged.values() for person in people}
        subjects, _, features = rows(customer.model)
        wanted = np.isin(np.array(subjects), list(erased))
        numbers |= set(np.ascontiguousarray(features[wanted]).view(np.uint64).ravel().tolist())
    return numbers


def _witnessed_numbers(service: Service) -> set[int]:
    """Return the bits of all weights without noise that attempts computed. Round values are left out."""
    numbers: set[int] = set()
    for path in service.witnesses.iterdir():
        content = path.read_bytes()
        bits = np.frombuffer(content[: len(content) // 8 * 8], dtype=np.uint64)
        numbers |= {int(each) for each in bits if int(each) & 0xFFFFFFFF}
    return numbers


def run_checks(
    service: Service, customers: list[Customer], heads: list[str], *, helped: bool, say: Callable[[str], None]
) -> list[Finding]:
    """Run all checks, and return what is wrong.

    If a person retried a batch, later ones may have been completed before it, and its attempts are counted
    from one again. The history is then not checked.
    """
    findings: list[Finding] = []
    with service.client(timeout=120) as lethe:
        for name, check in (
            *([] if helped else [("history of batches", lambda: check_history(service))]),
            ("requests", lambda: check_requests(lethe, customers)),
            ("versions", lambda: check_versions(lethe)),
            ("certificates and log", lambda: check_certificates(lethe, heads, service.folder)),
            ("scratch folders", lambda: check_scratch(service)),
            ("rows, identifiers and weights on disk", lambda: check_disk(service, customers)),
        ):
            found = list(check())
            say(f"{name}: {'; '.join(found) or 'ok'}")
            findings += found
    return findings
