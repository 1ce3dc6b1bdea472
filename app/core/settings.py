"""Every setting of the service: one object, environment prefix `LETHE_`, documented with its default."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr, ValidationError, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

PREFIX = "LETHE_"
# Variables of the same prefix that belong to the client and to the test and bench harness.
FOREIGN = ("LETHE_URL", "LETHE_API_KEY", "LETHE_TEST_", "LETHE_BENCH_")


class SettingsError(Exception):
    """A setting is unknown or malformed; the message is one line that names it."""


class Settings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid")

    data_dir: Path = Field(
        Path("lethe-data"), description="Folder of the embedded database, queue, storage and keys."
    )
    database_url: str = Field(
        "", description="SQLAlchemy URL, `postgresql+psycopg://…`; empty: SQLite in the data folder."
    )
    redis_url: str = Field("", description="Redis or Valkey URL; empty: a private server in the data folder.")
    storage_url: str = Field(
        "",
        description="Where checkpoints and datasets are: `s3://bucket/prefix`, or another fsspec URL; empty: "
        "the data folder.",
    )
    storage_endpoint: str = Field(
        "",
        pattern=r"^(https?://\S+)?$",
        description="S3 server of that bucket, as `https://s3.example.org`; empty: as the AWS variables say.",
    )
    queue_name: str = Field("lethe", pattern=r"^[a-z0-9-]{1,64}$", description="Name of the RQ queue.")

    host: str = Field("127.0.0.1", description="Address the gateway listens on.")
    port: int = Field(8420, ge=0, le=65535, description="Port the gateway listens on; 0: any free one.")
    max_body_bytes: int = Field(4 << 20, ge=1024, description="Largest JSON body, in bytes.")
    max_upload_bytes: int = Field(16 << 30, ge=1024, description="Largest uploaded file, in bytes.")
    max_uploads: int = Field(16, ge=1, le=1000, description="Files that are received at the same time.")
    upload_idle_seconds: float = Field(
        30.0, gt=0, le=3600, description="Silence after which a sender of a file is given up."
    )
    max_dataset_bytes: int = Field(
        64 << 30,
        ge=1024,
        description="Most bytes that a model's rows may take unpacked; Parquet can be tiny.",
    )
    import_roots: str = Field(
        "",
        description="URI prefixes that data may be imported from, separated by spaces; empty: from nowhere.",
    )
    public_certificates: bool = Field(
        False, description="Serve keys, log and single certificates without an API key; listings never."
    )

    dashboard: bool = Field(True, description="Serve the dashboard at `/`.")
    session_hours: float = Field(
        8.0, gt=0, le=168, description="How long someone stays signed in to the dashboard."
    )
    secure_cookies: bool | None = Field(
        None,
        description="Send the dashboard's cookies over https only; unset: when the request came that way. "
        "Set it to true behind a proxy that speaks TLS.",
    )

    webhook_intranet: bool = Field(
        False,
        description="Let webhooks go to private and loopback addresses, and over http; for an intranet of "
        "your own, where every tenant may reach whatever this machine can.",
    )
    webhook_ca_file: Path | None = Field(
        None,
        description="Authorities (PEM) that vouch for webhook receivers; unset: the public ones.",
    )

    signing_key: SecretStr = Field(SecretStr(""), description="PEM of the signing key (worker only).")
    signing_key_file: Path | None = Field(
        None,
        description="File of the signing key; unset: keys/signing.pem in the data folder.",
    )
    deployment_key_file: Path | None = Field(
        None,
        description="File of the key that encrypts identifiers; unset: keys/deployment.key there too.",
    )
    create_keys: bool | None = Field(
        None,
        description="Make a key whose file is missing; unset: only where database and queue are embedded.",
    )

    log_origin: str = Field(
        "lethe",
        pattern=r"^[^\s+]{1,200}$",
        description="Name of the certificate log on its signed tree heads.",
    )
    log_seen_file: Path | None = Field(
        None,
        description="Where a worker keeps the newest tree head it saw, to notice a log that was put back; "
        "unset: log-head in the data folder.",
    )

    device: Literal["auto", "cpu", "cuda", "mps"] = Field(
        "auto",
        description="Where the worker computes; auto: CUDA if there is any, else the CPU. MPS has no "
        "float64: asked for it, the worker computes on that machine's CPU.",
    )
    nproc: int = Field(
        1, ge=1, le=1024, description="Processes of this machine that share the rows of one job."
    )
    rank_timeout_seconds: float = Field(
        600.0,
        gt=0,
        le=86400,
        description="Silence after which one of several processes on a job is given up, and the attempt with "
        "it; one that ended is noticed at once.",
    )
    heartbeat_seconds: float = Field(5.0, gt=0, le=60, description="How often an attempt says it is alive.")
    dead_after_seconds: float = Field(
        0.0, ge=0, description="Silence after which an attempt is given up; 0: six heartbeats."
    )
    max_attempts: int = Field(5, ge=1, le=100, description="Attempts at one job before it fails.")
    retry_backoff_seconds: float = Field(
        2.0, ge=0, description="Wait before the second attempt; doubles each time."
    )
    dispatch_interval_seconds: float = Field(0.5, gt=0, le=60, description="How often the dispatcher looks.")
    lease_seconds: float = Field(10.0, gt=0, description="How long the active dispatcher holds its lease.")
    requeue_after_seconds: float = Field(
        10.0,
        gt=0,
        description="A message not picked up for so long is looked for, and sent again if Redis lost it.",
    )

    drain_seconds: float = Field(
        15.0,
        ge=0,
        le=86400,
        description="How long a worker that is asked to stop lets its attempt go on; then the job is handed "
        "back and another worker starts it anew.",
    )
    linger_seconds: float = Field(
        0.0,
        ge=0,
        le=300,
        description="How long a gateway that is asked to stop serves on, not ready, until balancers noticed.",
    )
    metrics_token_file: Path | None = Field(
        None,
        description="File of the bearer token for `/metrics`; unset: open, and only this process's requests "
        "are counted there.",
    )
    otlp_endpoint: str = Field(
        "",
        pattern=r"^(https?://\S+)?$",
        description="OpenTelemetry collector (OTLP over HTTP), as `http://collector:4318`; empty: no traces.",
    )

    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Least severe log line."
    )
    log_format: Literal["json", "console"] = Field("json", description="Shape of the log lines.")

    @model_validator(mode="after")
    def _supported_database(self) -> "Settings":
        if self.database_url and not self.database_url.startswith(("sqlite:///", "postgresql+psycopg://")):
            raise ValueError("database_url must start with sqlite:/// or postgresql+psycopg://")
        return self

    @property
    def database(self) -> str:
        return self.database_url or f"sqlite:///{self.data_dir.absolute() / 'lethe.db'}"

    @property
    def storage(self) -> str:
        return self.storage_url or f"file://{self.data_dir.absolute() / 'storage'}"

    @property
    def may_create_keys(self) -> bool:
        """Elsewhere a missing file is a mistake, and a key made up in its place would be used for good."""
        if self.create_keys is not None:
            return self.create_keys
        return not self.database_url and not self.redis_url

    @property
    def signing_key_path(self) -> Path:
        return self.signing_key_file or self.data_dir / "keys" / "signing.pem"

    @property
    def deployment_key_path(self) -> Path:
        return self.deployment_key_file or self.data_dir / "keys" / "deployment.key"

    @property
    def log_seen_path(self) -> Path:
        return self.log_seen_file or self.data_dir / "log-head"

    @property
    def dead_after(self) -> float:
        return self.dead_after_seconds or 6 * self.heartbeat_seconds


def load_settings(environ: Mapping[str, str] | None = None) -> Settings:
    """Settings from the environment; an unknown or malformed variable is an error, not a shrug."""
    known = {PREFIX + name.upper() for name in Settings.model_fields}
    for name in os.environ if environ is None else environ:
        if name.upper().startswith(PREFIX) and name.upper() not in known and not name.startswith(FOREIGN):
            raise SettingsError(f"{name}: unknown setting")
    try:
        if environ is None:
            return Settings()
        return Settings.model_validate(
            {k.removeprefix(PREFIX).lower(): v for k, v in environ.items() if k.upper() in known}
        )
    except ValidationError as problem:
        first = problem.errors()[0]
        name = PREFIX + str(first["loc"][0]).upper() if first["loc"] else PREFIX + "DATABASE_URL"
        raise SettingsError(f"{name}: {first['msg']}") from None
