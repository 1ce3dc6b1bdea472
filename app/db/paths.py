"""Where files live in the storage. An attempt writes only below its own folder, named by its token."""

from uuid import UUID


def part_prefix(model_id: UUID, part: str) -> str:
    return f"datasets/{model_id}/upload/{part}-"


def uploaded_part(model_id: UUID, part: str, upload: UUID) -> str:
    return f"{part_prefix(model_id, part)}{upload}.parquet"


def uploaded_weights(model_id: UUID) -> str:
    return f"models/{model_id}/upload/weights.safetensors"


def attempts(job_id: UUID) -> str:
    """Everything that any attempt at this job has written."""
    return f"attempts/{job_id}"


def attempt(job_id: UUID, token: UUID) -> str:
    return f"{attempts(job_id)}/{token}"
