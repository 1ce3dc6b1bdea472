"""Receipts of an erasure, issued from the salts and statements that the worker stored.

Once the salts are destroyed, the receipts cannot be issued again.
"""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from pydantic import BaseModel, Field
from sqlalchemy import Row, Select, and_, func, or_, select
from sqlalchemy.orm import Session

from app.core.vault import RowCipher
from app.db import audit_log, receipts
from app.db.audit_log import Action
from app.db.data_keys import DataKeys
from app.db.states import SubjectOutcome, TaskState
from app.db.tables import Certificate, Model, Task, TaskSubject, Version
from app.gateway.certificates import service as certificates
from app.gateway.erasures import service
from app.gateway.errors import Conflict, Gone
from lethe.certificate import envelope
from lethe.certificate.commitment import IDENTIFIER_RULE, SubjectCommitment
from lethe.certificate.receipt import NoDataReceipt, Receipt, build_no_data_receipt, issue_receipts

CURSOR = r"^[0-9a-f]{32}\.[0-9]{1,7}$"
Query = Select[TaskSubject, Task, str, UUID, str]
SubjectRow = Row[TaskSubject, Task, str, UUID, str]
Document = Receipt | NoDataReceipt | dict[str, Any]
Position = tuple[UUID, int]
"""A task id and the ordinal of a subject."""


class ReceiptView(BaseModel):
    """The receipt of one subject for one model."""

    model: str = Field(description="The name of the model.")
    ordinal: int = Field(
        description="The position of the subject among the request's distinct subjects, from 0."
    )
    outcome: SubjectOutcome = Field(description="What was found and done in this model's data.")
    certificate_id: UUID | None = Field(
        description="The certificate that the receipt refers to. Null unless the outcome is `erased`."
    )
    receipt: Document | None = Field(
        description="The document for `lethe verify --receipt`. For an erased subject, it is the proof that "
        "the certificate covers them. For a subject without data, it is the signed statement that no data "
        "is held, with the proof that it is in the certificate log. Null for a subject whose data was only "
        "in holdout or staged parts: no certificate covers those rows."
    )


class ReceiptPage(BaseModel):
    """One page of receipts."""

    items: list[ReceiptView] = Field(description="The receipts, in the order of the request.")
    next_cursor: str | None = Field(
        description="Pass this as `cursor` to get the next page. Null at the end."
    )


class Acknowledgement(BaseModel):
    """The result of acknowledging receipts."""

    destroyed: int = Field(
        description="The number of receipts whose salts were destroyed. 0 if they were destroyed before."
    )


def fetch_receipts(
    session: Session,
    data_keys: DataKeys,
    tenant_id: UUID,
    erasure_id: UUID,
    *,
    model: str | None,
    ordinal: int | None,
    limit: int,
    cursor: str | None,
) -> ReceiptPage:
    """Return one page of receipts in the order of the request. Raise `Gone` if all of them are destroyed."""
    erasure = service.get(session, tenant_id, erasure_id)
    completed = _completed_subjects(erasure.id, model, ordinal)
    without_salt = TaskSubject.outcome == SubjectOutcome.ERASED_OUTSIDE_TRAINING
    available = completed.where(or_(TaskSubject.salt.is_not(None), without_salt))
    if cursor is not None:
        available = available.where(_after(cursor))
    rows = session.execute(available.order_by(Task.id, TaskSubject.ordinal).limit(limit + 1)).all()
    # A task without a batch ended because its model was not registered. It never has receipts.
    destroyed = completed.where(TaskSubject.salt.is_(None), Task.batch_id.is_not(None))
    if not rows and session.execute(destroyed.limit(1)).first():
        raise Gone(
            "The salts of these receipts were destroyed, because the receipts were acknowledged or have "
            "expired. They cannot be issued again."
        )
    documents = _documents(session, data_keys, erasure.id, rows[:limit])
    last = rows[limit - 1][0] if len(rows) > limit else None
    return ReceiptPage(
        items=[_receipt_view(row, documents) for row in rows[:limit]],
        next_cursor=last and f"{last.task_id.hex}.{last.ordinal}",
    )


def download_receipts(
    session: Session,
    data_keys: DataKeys,
    tenant_id: UUID,
    erasure_id: UUID,
    *,
    model: str | None,
    ordinal: int | None,
    limit: int,
    cursor: str | None,
) -> ReceiptPage:
    """Return one page of receipts to hand out, and record in the audit log that they were fetched."""
    page = fetch_receipts(
        session, data_keys, tenant_id, erasure_id, model=model, ordinal=ordinal, limit=limit, cursor=cursor
    )
    if issued := sum(item.receipt is not None for item in page.items):
        details = {"receipts": issued}
        audit_log.record(session, tenant_id, Action.RECEIPTS_DOWNLOADED, f"erasure/{erasure_id}", details)
    return page


def _receipt_view(row: SubjectRow, documents: Mapping[Position, Document]) -> ReceiptView:
    subject, _, model, certificate_id, _ = row
    return ReceiptView(
        model=model,
        ordinal=subject.ordinal,
        outcome=SubjectOutcome(str(subject.outcome)),
        certificate_id=certificate_id if subject.outcome == SubjectOutcome.ERASED else None,
        receipt=documents.get((subject.task_id, subject.ordinal)),
    )


def acknowledge(session: Session, tenant_id: UUID, erasure_id: UUID) -> Acknowledgement:
    """Destroy the salts of an erasure's completed tasks.

    A running task keeps its salts: its worker needs them.
    """
    erasure = service.get(session, tenant_id, erasure_id)
    tasks = select(Task.id).where(Task.erasure_id == erasure.id, Task.state == TaskState.COMPLETED)
    if session.scalar(tasks.limit(1)) is None:
        raise Conflict("This erasure has no receipts yet: none of its tasks is completed. Try again later.")
    salts = select(func.count()).where(TaskSubject.task_id.in_(tasks), TaskSubject.salt.is_not(None))
    destroyed = session.scalar(salts) or 0
    receipts.destroy_salts(session, tasks)
    details = {"destroyed": destroyed}
    audit_log.record(session, tenant_id, Action.RECEIPTS_ACKNOWLEDGED, f"erasure/{erasure_id}", details)
    return Acknowledgement(destroyed=destroyed)


def _completed_subjects(erasure_id: UUID, model: str | None, ordinal: int | None) -> Query:
    """Select the subjects of completed tasks, each with its task, model and certificate."""
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
    session: Session, data_keys: DataKeys, erasure_id: UUID, rows: Sequence[SubjectRow]
) -> dict[Position, Document]:
    """Issue the receipts of a page. Takes a constant number of queries."""
    batches: dict[tuple[UUID | None, str], list[TaskSubject]] = defaultdict(list)
    without_data: list[TaskSubject] = []
    for subject, task, _, _, digest in rows:
        if subject.outcome == SubjectOutcome.ERASED:
            batches[task.batch_id, digest].append(subject)
        elif subject.outcome == SubjectOutcome.NOT_IN_TRAINING_SET:
            without_data.append(subject)
    tasks = {task.id: task for _, task, _, _, _ in rows}
    ciphers = {
        task_id: data_keys.receipt_cipher(task_id, task.receipt_key, task.receipt_key_id)
        for task_id, task in tasks.items()
    }
    documents = _statements(session, ciphers, without_data) if without_data else {}
    leaves = _leaves_by_batch(session, [batch_id for batch_id, _ in batches]) if batches else {}
    for (batch_id, digest), subjects in batches.items():
        issued = issue_receipts(
            [_commitment(ciphers[subject.task_id], erasure_id, subject) for subject in subjects],
            certificate_digest=digest,
            leaves=leaves[batch_id],
        )
        documents |= {
            (subject.task_id, subject.ordinal): receipt if receipt.identifier_rule else receipt.document()
            for subject, receipt in zip(subjects, issued, strict=True)
        }
    return documents


def _statements(
    session: Session, ciphers: Mapping[UUID, RowCipher], subjects: Sequence[TaskSubject]
) -> dict[Position, Document]:
    """Return the "no data held" documents. Statements in the log are proved under its newest tree head."""
    documents: dict[Position, Document] = {}
    logged = [subject.log_index for subject in subjects if subject.log_index is not None]
    proofs = certificates.prove_inclusions(session, logged) if logged else {}
    keys = certificates.key_set(session)
    for subject in subjects:
        assert subject.no_data is not None
        position = (subject.task_id, subject.ordinal)
        cipher = ciphers[subject.task_id]
        raw = cipher.open_statement(subject.no_data, task_id=subject.task_id, ordinal=subject.ordinal)
        if (
            subject.log_index is None
        ):  # older statements are not in the log: the signed envelope is the receipt
            documents[position] = json.loads(raw)
            continue
        proof = proofs[subject.log_index]
        documents[position] = build_no_data_receipt(
            envelope.parse(raw), tree_head=proof.checkpoint, index=proof.index, path=proof.path, keys=keys
        )
    return documents


def _commitment(cipher: RowCipher, erasure_id: UUID, subject: TaskSubject) -> SubjectCommitment:
    assert subject.salt is not None
    assert subject.commitment is not None
    return SubjectCommitment(
        str(erasure_id),
        cipher.open_salt(subject.salt, task_id=subject.task_id, ordinal=subject.ordinal),
        subject.commitment.hex(),
        IDENTIFIER_RULE if subject.identifier_rule == IDENTIFIER_RULE else None,
    )


def _leaves_by_batch(
    session: Session, batch_ids: Sequence[UUID | None]
) -> Mapping[UUID | None, Sequence[bytes]]:
    """Return the leaves of everyone erased in each batch, including other requests and destroyed salts."""
    rows = session.execute(
        select(Task.batch_id, TaskSubject.leaf)
        .join(TaskSubject, TaskSubject.task_id == Task.id)
        .where(Task.batch_id.in_(batch_ids), TaskSubject.leaf.is_not(None))
    )
    leaves: dict[UUID | None, list[bytes]] = defaultdict(list)
    for batch_id, leaf in rows:
        if leaf is not None:
            leaves[batch_id].append(leaf)
    return leaves
