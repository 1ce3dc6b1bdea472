"""Where files live in the storage. An attempt writes only below its own folder, named by its token."""

from uuid import UUID


def uploaded(model_id: UUID) -> str:
    """Everything that was ever sent for this model; each file is named by its upload."""
    return f"datasets/{model_id}"


def upload(model_id: UUID, upload_id: UUID) -> str:
    return f"{uploaded(model_id)}/{upload_id}"


def upload_chunks(model_id: UUID, upload_id: UUID) -> str:
    """The pieces of a file that comes in pieces: object stores cannot append."""
    return f"{uploaded(model_id)}/{upload_id}.chunks"


def upload_chunk(model_id: UUID, upload_id: UUID, start: int) -> str:
    return f"{upload_chunks(model_id, upload_id)}/{start:020d}"


def attempts(job_id: UUID) -> str:
    """Everything that any attempt at this job has written."""
    return f"attempts/{job_id}"


def attempt(job_id: UUID, token: UUID) -> str:
    return f"{attempts(job_id)}/{token}"
