"""Paths in the storage. An attempt writes only below its own folder, which is named after its token."""

import re
from uuid import UUID

ATTEMPTS = "attempts"
DATA_KEYS = "keys"
DATA_KEY = re.compile(
    rf"{DATA_KEYS}/(?P<id>[0-9a-f]{{8}}(?:-[0-9a-f]{{4}}){{3}}-[0-9a-f]{{12}})(?:\.\w+\.draft)?", re.ASCII
)
"""The files of data keys, and unfinished ones."""
SKETCHES = "sketches"


def uploaded(model_id: UUID) -> str:
    """Return the folder of everything uploaded for a model. Each file is named after its upload."""
    return f"datasets/{model_id}"


def upload(model_id: UUID, upload_id: UUID) -> str:
    """Return the path of an uploaded file."""
    return f"{uploaded(model_id)}/{upload_id}"


def upload_chunks(model_id: UUID, upload_id: UUID) -> str:
    """Return the folder of the chunks of a resumable upload. Object stores cannot append to a file."""
    return f"{uploaded(model_id)}/{upload_id}.chunks"


def upload_chunk(model_id: UUID, upload_id: UUID, start: int) -> str:
    """Return the path of the chunk that starts at this byte. Names sort in the order of the bytes."""
    return f"{upload_chunks(model_id, upload_id)}/{start:020d}"


def library(entry_id: UUID) -> str:
    """Return the folder of an entry of the library of representations."""
    return f"library/{entry_id}"


def attempts(job_id: UUID) -> str:
    """Return the folder of everything that attempts at this job have written."""
    return f"{ATTEMPTS}/{job_id}"


def attempt(job_id: UUID, token: UUID) -> str:
    """Return the folder of one attempt."""
    return f"{attempts(job_id)}/{token}"


def sketches(model_id: UUID) -> str:
    """Return the folder of a model's curvature sketches."""
    return f"{SKETCHES}/{model_id}"


def sketch(model_id: UUID, version_id: UUID) -> str:
    """Return the path of the curvature sketch at the weights of a version."""
    return f"{sketches(model_id)}/{version_id}"


def data_key(key_id: UUID) -> str:
    """Return the path of a data key's file."""
    return f"{DATA_KEYS}/{key_id}"
