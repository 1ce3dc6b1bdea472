"""Receipts of one erasure: made from what the worker left, and gone with their salts."""

import json
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from pydantic import BaseModel, Field
from sqlalchemy import Row, Select, and_, func, or_, select
from sqlalchemy.orm import Session

from app.certificates import service as certificates
from app.db import receipts
from app.db.states import SubjectOutcome, TaskState
from app.db.tables import Certificate, Model, Task, TaskSubject, Version
from app.erasures import service
from app.errors import Conflict, Gone
from app.vault import Vault
from certificate import envelope
from certificate.commitment import IDENTIFIER_RULE, SubjectCommitment
from certificate.receipt import NoDataReceipt, Receipt, issue_receipts, no_data_receipt

CURSOR = r"^[0-9a-f]{32}\.[0-9]{1,7}$"
Query = Select[TaskSubject, Task, str, UUID, str]
Found = Row[TaskSubject, Task, str, UUID, str]
Document = Receipt | NoDataReceipt | dict[str, Any]
Place = tuple[UUID, int]


class ReceiptShown(BaseModel):
    model: str
    ordinal: int = Field(description="Place of the subject among the request's distinct subjects, from 0.")
    outcome: SubjectOutcome
    certificate_id: UUID | None = Field(description="The certificate that the receipt leads to.")
    receipt: Document | None = Field(
        description="For the erased, the way to the certificate's root; for someone without rows, the signed "
        "statement that no data is held, with the proof that it is in the log. Saved as a file, it is what "
        "`lethe verify --receipt` takes. Null for rows in holdout or staged parts only: data was held, and "
        "no certificate speaks of it."
    )


class ReceiptPage(BaseModel):
    items: list[ReceiptShown]
    next_cursor: str | None


class Acknowledged(BaseModel):
    destroyed: int = Field(description="Receipts whose salts were destroyed; 0 when they were before.")


def page(
    session: Session,
    vault: Vault,
    tenant_id: UUID,
    erasure_id: UUID,
    *,
    model: str | None,
    ordinal: int | None,
    limit: int,
    cursor: str | None,
) -> ReceiptPage:
    """Return receipts in the order of the request; 410 when each that was asked for is destroyed."""
    erasure = service.get(session, tenant_id, erasure_id)
    ended = _ended(erasure.id, model, ordinal)
    without = TaskSubject.outcome == SubjectOutcome.ERASED_OUTSIDE_TRAINING
    held = ended.where(or_(TaskSubject.salt.is_not(None), without))
    if cursor is not None:
        held = held.where(_after(cursor))
    rows = session.execute(held.order_by(Task.id, TaskSubject.ordinal).limit(limit + 1)).all()
    if not rows and session.execute(ended.where(TaskSubject.salt.is_(None)).limit(1)).first():
        raise Gone(
            "Acknowledged or expired: the salts of these receipts were destroyed. A model that was retired "
            "before it was ready gives none."
        )
    documents = _documents(session, vault, erasure.id, rows[:limit])
    shown = [
        ReceiptShown(
            model=name,
            ordinal=subject.ordinal,
            outcome=SubjectOutcome(str(subject.outcome)),
            certificate_id=certificate_id if subject.outcome == SubjectOutcome.ERASED else None,
            receipt=documents.get((subject.task_id, subject.ordinal)),
        )
        for subject, _, name, certificate_id, _ in rows[:limit]
    ]
    last = rows[limit - 1][0] if len(rows) > limit else None
    return ReceiptPage(items=shown, next_cursor=last and f"{last.task_id.hex}.{last.ordinal}")


def acknowledge(session: Session, tenant_id: UUID, erasure_id: UUID) -> Acknowledged:
    """Those of ended tasks; a task still under way keeps its salts, which its worker needs."""
    erasure = service.get(session, tenant_id, erasure_id)
    tasks = select(Task.id).where(Task.erasure_id == erasure.id, Task.state == TaskState.COMPLETED)
    if session.scalar(tasks.limit(1)) is None:
        raise Conflict("No task of this erasure is completed: there is no receipt yet.")
    held = select(func.count()).where(TaskSubject.task_id.in_(tasks), TaskSubject.salt.is_not(None))
    destroyed = session.scalar(held) or 0
    receipts.destroy_salts(session, tasks)
    return Acknowledged(destroyed=destroyed)


def _ended(erasure_id: UUID, model: str | None, ordinal: int | None) -> Query:
    """Subjects of completed tasks, each with task, model, and the certificate of its batch."""
    query = (
        select(TaskSubject, Task, Model.name, Certificate.id, Certificate.digest)
        .join(Task, Task.id == TaskSubject.task_id)
        .join(Model, Model.id == Task.model_id)
        .outerjoin(Version, Version.batch_id == Task.batch_id)
        .outerjoin(Certificate, Certificate.id == Version.certificate_id)
        .where(Task.erasure_id == erasure_id, Task.state == TaskState.COMPLETED)
    )
    if model is not None:
        query = query.where(Model.name == model)
    return query if ordinal is None else query.where(TaskSubject.ordinal == ordinal)


def _after(cursor: str) -> Any:
    task, ordinal = cursor.split(".")
    last = UUID(task)
    return or_(Task.id > last, and_(Task.id == last, TaskSubject.ordinal > int(ordinal)))


def _documents(
    session: Session, vault: Vault, erasure_id: UUID, rows: Sequence[Found]
) -> dict[Place, Document]:
    batches: dict[tuple[UUID | None, str], list[TaskSubject]] = {}
    without: list[TaskSubject] = []
    for subject, task, _, _, digest in rows:
        if subject.outcome == SubjectOutcome.ERASED:
            batches.setdefault((task.batch_id, digest), []).append(subject)
        elif subject.outcome == SubjectOutcome.NOT_IN_TRAINING_SET:
            without.append(subject)
    documents = _statements(session, vault, without)
    for (batch_id, digest), subjects in batches.items():
        made = issue_receipts(
            [_commitment(vault, erasure_id, subject) for subject in subjects],
            certificate_digest=digest,
            leaves=_leaves(session, batch_id),
        )
        documents |= {
            (subject.task_id, subject.ordinal): receipt if receipt.identifier_rule else receipt.document()
            for subject, receipt in zip(subjects, made, strict=True)
        }
    return documents


def _statements(session: Session, vault: Vault, subjects: Sequence[TaskSubject]) -> dict[Place, Document]:
    """Return the "no data held" documents: statements that are in the log come under its newest head."""
    found: dict[Place, Document] = {}
    logged = [subject.log_index for subject in subjects if subject.log_index is not None]
    proofs = certificates.inclusions(session, logged) if logged else {}
    keys = certificates.key_set(session)
    for subject in subjects:
        assert subject.no_data is not None
        place = (subject.task_id, subject.ordinal)
        raw = vault.open_statement(subject.no_data, task_id=subject.task_id, ordinal=subject.ordinal)
        if subject.log_index is None:  # from before they were logged: the signed envelope is the receipt
            found[place] = json.loads(raw)
            continue
        proof = proofs[subject.log_index]
        found[place] = no_data_receipt(
            envelope.parse(raw), checkpoint=proof.checkpoint, index=proof.index, path=proof.path, keys=keys
        )
    return found


def _commitment(vault: Vault, erasure_id: UUID, subject: TaskSubject) -> SubjectCommitment:
    assert subject.salt is not None
    assert subject.commitment is not None
    return SubjectCommitment(
        str(erasure_id),
        vault.open_salt(subject.salt, task_id=subject.task_id, ordinal=subject.ordinal),
        subject.commitment.hex(),
        IDENTIFIER_RULE if subject.identifier_rule == IDENTIFIER_RULE else None,
    )


def _leaves(session: Session, batch_id: UUID | None) -> Sequence[bytes]:
    """Of everyone erased in the batch, whoever asked for it and whether or not their salt is still there."""
    found = session.scalars(
        select(TaskSubject.leaf)
        .join(Task, Task.id == TaskSubject.task_id)
        .where(Task.batch_id == batch_id, TaskSubject.leaf.is_not(None))
    ).all()
    return [leaf for leaf in found if leaf is not None]
