"""The privacy ledger, recomputed from the certificates: it cannot differ from what was signed.

For subjects erased in release j the releases k ≥ j count, up to the next retraining: that is a function of
the retained rows alone, and so is whatever starts from it.
"""

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.db.manifest import Manifest
from app.db.tables import Certificate, Model
from app.ledger.schemas import Ledger, LedgerEntry
from certificate import envelope, privacy, statement
from certificate.chain import Link, RunningSum, running_sum, sum_of, total_epsilon
from certificate.statement import AnyStatement

NOTHING = RunningSum(0.0, 0.0, 0.0, "proved")


def ledger(session: Session, model: Model) -> Ledger:
    manifest = Manifest.model_validate(model.manifest)
    policy = manifest.policy
    records = session.scalars(
        select(Certificate).where(Certificate.model_id == model.id).order_by(Certificate.chain_index)
    ).all()
    statements = [statement.parse(envelope.parse(record.envelope).payload) for record in records]
    links = [Link(record.digest, said) for said, record in zip(statements, records, strict=True)]
    running = running_sum(links) if links else NOTHING
    epsilon = total_epsilon(running, delta=policy.delta)
    return Ledger(
        model=model.name,
        delta=policy.delta,
        lifetime_epsilon=policy.lifetime_epsilon,
        running_shift=running.shift,
        running_epsilon=epsilon,
        remaining_epsilon=None if epsilon is None else max(policy.lifetime_epsilon - epsilon, 0.0),
        releases_left=releases_left(
            running.shift,
            shift=manifest.release_shift,
            cap=privacy.shift_for(epsilon=policy.lifetime_epsilon, delta=policy.delta),
        ),
        entries=[_entry(said, links, place) for place, said in enumerate(statements)],
    )


def releases_left(running: float, *, shift: float, cap: float) -> int | None:
    """How many more shifts fit under the cap; None where they add nothing.

    >>> releases_left(0.0, shift=1.0, cap=2.0), releases_left(2.0, shift=1.0, cap=2.0)
    (4, 0)
    """
    if shift == 0:  # a retraining each time
        return None
    room = cap**2 - running**2
    return max(int(room / shift**2 * (1 + 1e-12)), 0)


def subjects_links(links: Sequence[Link], place: int) -> Sequence[Link]:
    """The releases that concern the subjects of the release at `place`.

    Draws discarded right before it were made on the same rows, for the same subjects.
    """
    later = (i for i in range(place + 1, len(links)) if links[i].mechanism == "retrain")
    first = place
    while first > 0 and links[first - 1].mechanism == "discarded":
        first -= 1
    return links[first : next(later, len(links))]


def _entry(said: AnyStatement, links: Sequence[Link], place: int) -> LedgerEntry:
    predicate = said.predicate
    concerned, delta = sum_of(subjects_links(links, place)), predicate.lifetime.delta
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
