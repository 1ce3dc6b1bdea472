"""The privacy ledger of a model: endpoint, schema and computation.

The ledger is recomputed from the certificates, so it cannot differ from what was signed. For subjects
erased in release j, the releases k ≥ j count, up to the next retraining. A retraining depends on the
retained rows alone, and so does everything that starts from it.
"""

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from fastapi import APIRouter
from pydantic import BaseModel, Field
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.db.manifest import Manifest
from app.db.states import ModelState
from app.db.tables import Certificate, Model
from app.gateway.auth.guard import CanReadModels, ServicesOf
from app.gateway.models import service
from app.gateway.models.schemas import ModelName
from lethe.certificate import envelope, privacy, statement
from lethe.certificate.chain import Link, RunningSum, running_sum, sum_of, total_epsilon
from lethe.certificate.statement import AnyStatement

router = APIRouter(prefix="/v1/models/{name}/ledger", tags=["ledger"])
NOTHING_SPENT = RunningSum(0.0, 0.0, 0.0, "proved")


class LedgerEntry(BaseModel):
    """One release. A discarded draw counts as a release too."""

    certificate_id: UUID
    version: int = Field(description="The version that the release published or would have published.")
    mechanism: str = Field(description="How the release was made.")
    shift: float = Field(description="s = Δ*/σ of this release. 0 for a retraining.")
    delta: float = Field(description="The δ for which this entry states its ε.")
    running_shift: float = Field(description="√Σs² of all releases since the last retraining.")
    running_epsilon: float | None = Field(
        description="The ε that `running_shift` amounts to at this δ. Null if one of the releases is an "
        "estimate."
    )
    subjects_shift: float = Field(description="√Σs² of the releases that concern the people erased here.")
    subjects_epsilon: float | None = Field(
        description="The ε that `subjects_shift` amounts to: what holds today for the people erased here."
    )
    issued_at: datetime


class Ledger(BaseModel):
    """The privacy budget of a model: what each release spent, and what is left."""

    model: str = Field(description="The name of the model.")
    delta: float = Field(description="The δ of the model's policy.")
    lifetime_epsilon: float = Field(description="The upper limit for `running_epsilon`.")
    running_shift: float = Field(description="√Σs² of all releases since the last retraining.")
    running_epsilon: float | None = Field(
        description="The ε spent since the last retraining. Null if one of the releases is an estimate."
    )
    remaining_epsilon: float | None = Field(
        description="`lifetime_epsilon` minus `running_epsilon`. A further release takes less than its own ε "
        "from it, because ε does not add up linearly."
    )
    releases_left: int | None = Field(
        description="How many more releases fit under the current policy before the model must be "
        "retrained. Null if every release is a retraining. 0 if the model is not ready."
    )
    entries: list[LedgerEntry] = Field(description="All releases, oldest first.")


@router.get("")
def get_ledger(name: ModelName, caller: CanReadModels, services: ServicesOf) -> Ledger:
    """Return what each release spent, what is left, and what holds today for each batch's people."""
    with services.database.reading() as session:
        return compute_ledger(session, service.get(session, caller.tenant_id, name))


def compute_ledger(session: Session, model: Model) -> Ledger:
    """Compute the ledger of a model from its certificates."""
    manifest = Manifest.model_validate(model.manifest)
    policy = manifest.policy
    records = session.scalars(
        select(Certificate).where(Certificate.model_id == model.id).order_by(Certificate.chain_index)
    ).all()
    statements = [statement.parse(envelope.parse(record.envelope).payload) for record in records]
    links = [Link(record.digest, signed) for signed, record in zip(statements, records, strict=True)]
    running = running_sum(links) if links else NOTHING_SPENT
    epsilon = total_epsilon(running, delta=policy.delta)
    return Ledger(
        model=model.name,
        delta=policy.delta,
        lifetime_epsilon=policy.lifetime_epsilon,
        running_shift=running.shift,
        running_epsilon=epsilon,
        remaining_epsilon=None if epsilon is None else max(policy.lifetime_epsilon - epsilon, 0.0),
        releases_left=0
        if model.state != ModelState.READY
        else releases_left(
            running.shift,
            shift=manifest.release_shift,
            cap=privacy.shift_for(epsilon=policy.lifetime_epsilon, delta=policy.delta),
        ),
        entries=[_entry(signed, links, index) for index, signed in enumerate(statements)],
    )


def releases_left(running: float, *, shift: float, cap: float) -> int | None:
    """Return how many more releases of this shift fit under the cap, or None if they add nothing.

    >>> releases_left(0.0, shift=1.0, cap=2.0), releases_left(2.0, shift=1.0, cap=2.0)
    (4, 0)
    """
    if shift == 0:  # every release is a retraining
        return None
    room = cap**2 - running**2
    return max(int(room / shift**2 * (1 + 1e-12)), 0)


def subjects_links(links: Sequence[Link], index: int) -> Sequence[Link]:
    """Return the releases that concern the people erased by the release at `index`.

    Draws that were discarded right before it used the same rows, so they concern the same people.
    """
    later = (i for i in range(index + 1, len(links)) if links[i].mechanism == "retrain")
    first = index
    while first > 0 and links[first - 1].mechanism == "discarded":
        first -= 1
    return links[first : next(later, len(links))]


def _entry(signed: AnyStatement, links: Sequence[Link], index: int) -> LedgerEntry:
    predicate = signed.predicate
    concerned, delta = sum_of(subjects_links(links, index)), predicate.lifetime.delta
    return LedgerEntry(
        certificate_id=predicate.certificate_id,
        version=predicate.version,
        mechanism=predicate.mechanism,
        shift=predicate.lifetime.release_shift,
        delta=predicate.lifetime.delta,
        running_shift=predicate.lifetime.running_shift,
        running_epsilon=predicate.lifetime.epsilon_total,
        subjects_shift=concerned.shift,
        subjects_epsilon=total_epsilon(concerned, delta=delta),
        issued_at=predicate.issued_at,
    )
