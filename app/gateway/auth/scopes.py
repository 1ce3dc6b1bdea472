"""The scopes of API keys."""

from enum import StrEnum


class Scope(StrEnum):
    """What an API key allows. `ADMIN` allows everything within its tenant."""

    ERASURES_WRITE = "erasures:write"
    ERASURES_READ = "erasures:read"
    MODELS_ADMIN = "models:admin"
    MODELS_READ = "models:read"
    CHECKPOINTS_READ = "checkpoints:read"
    CERTIFICATES_READ = "certificates:read"
    AUDIT_READ = "audit:read"
    WEBHOOKS_ADMIN = "webhooks:admin"
    ADMIN = "admin"
