"""The settings of the service, from environment variables with the prefix `LETHE_`."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, SecretStr, ValidationError, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

PREFIX = "LETHE_"
# Variables with the same prefix that belong to the client, the tests and the benchmarks.
FOREIGN = ("LETHE_URL", "LETHE_API_KEY", "LETHE_TEST_", "LETHE_BENCH_")


class SettingsError(Exception):
    """A setting is unknown or malformed. The message is one line that names it."""


class Settings(BaseSettings):
    """The settings of the service. docs/settings.md is generated from the descriptions."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid")

    data_dir: Path = Field(
        Path("lethe-data"),
        description="The folder that holds the embedded database and queue, the files and the keys.",
    )
    database_url: str = Field(
        "",
        description="The SQLAlchemy URL of the database, such as `postgresql+psycopg://…`. Empty: SQLite in "
        "the data folder.",
    )
    redis_url: str = Field(
        "", description="The URL of a Redis or Valkey server. Empty: a private server in the data folder."
    )
    storage_url: str = Field(
        "",
        description="Where weights and datasets are stored: `s3://bucket/prefix` or another fsspec URL. "
        "Empty: the data folder.",
    )
    storage_endpoint: str = Field(
        "",
        pattern=r"^(https?://\S+)?$",
        description="The S3 server of that bucket, such as `https://s3.example.org`. Empty: the one that the "
        "AWS variables name.",
    )
    queue_name: str = Field("lethe", pattern=r"^[a-z0-9-]{1,64}$", description="The name of the RQ queue.")

    host: str = Field("127.0.0.1", description="The address that the gateway listens on.")
    port: int = Field(
        8420, ge=0, le=65535, description="The port that the gateway listens on. 0: any free port."
    )
    max_body_bytes: int = Field(
        4 << 20,
        ge=1024,
        description="The largest JSON body of a request, in bytes. Most endpoints accept less.",
    )
    max_header_bytes: int = Field(
        32 << 10, ge=1024, le=1 << 20, description="The largest header of a request, in bytes."
    )
    header_seconds: float = Field(
        20.0, gt=0, le=3600, description="How long the header of a request may take to arrive."
    )
    body_seconds: float = Field(
        60.0,
        gt=0,
        le=3600,
        description="How long the body of a request may take to arrive, unless it is a file.",
    )
    max_incomplete_requests: int = Field(
        1000,
        ge=1,
        le=1_000_000,
        description="How many requests one gateway receives at the same time. Beyond that it gives up the "
        "oldest that are not complete. Files do not count.",
    )
    database_seconds: float = Field(
        10.0,
        gt=0,
        le=600,
        description="How long a gateway waits for each answer of the database before it gives up and answers "
        "503. PostgreSQL ends a statement of a gateway that takes longer.",
    )
    requests_per_minute_per_key: int = Field(
        12_000,
        ge=0,
        description="How many requests one API key may send to one gateway in a minute. 0: no limit.",
    )
    requests_per_minute_per_tenant: int = Field(
        24_000,
        ge=0,
        description="How many requests all keys and people of a tenant may send to one gateway in a minute. "
        "0: no limit.",
    )
    public_requests_per_minute_per_address: int = Field(
        600,
        ge=0,
        description="How many requests without an API key one address may send to one gateway in a minute, "
        "where certificates are public. Addresses of one IPv6 network (/64) count as one. 0: no limit.",
    )
    failed_sign_ins_per_minute: int = Field(
        20,
        ge=0,
        description="How many sign-ins to the dashboard may fail from one address in a minute. 0: no limit.",
    )
    max_models_per_tenant: int = Field(
        1000,
        ge=0,
        description="How many models a tenant may have, not counting retired ones. 0: no limit.",
    )
    max_upload_bytes: int = Field(16 << 30, ge=1024, description="The largest uploaded file, in bytes.")
    max_representation_bytes: int = Field(
        1 << 30, ge=1024, description="The largest graph of a representation, in bytes."
    )
    max_tokenizer_bytes: int = Field(
        64 << 20, ge=1024, description="The largest tokenizer of a representation, in bytes."
    )
    max_uploads: int = Field(
        16,
        ge=1,
        le=1000,
        description="How many files one gateway receives at the same time. One tenant can send at most three "
        "quarters of them.",
    )
    upload_idle_seconds: float = Field(
        30.0, gt=0, le=3600, description="How long an upload may pause before the gateway drops it."
    )
    upload_min_bytes_per_second: float = Field(
        1024.0,
        ge=0,
        description="How fast an upload must be, on average over as long as it may pause. 0: no limit.",
    )
    max_dataset_bytes: int = Field(
        64 << 30,
        ge=1024,
        description="How many bytes a model's rows may take when unpacked. A small Parquet file can unpack "
        "to a very large one.",
    )
    max_parameters: int = Field(
        200_000_000,
        ge=1,
        description="How many parameters a model may have, with those of its anchor that are not trained. A "
        "fit holds several copies of them in memory, with 8 bytes each.",
    )
    import_roots: str = Field(
        "",
        description="The roots (URI prefixes) that data may be imported from, separated by spaces. A tenant "
        "may import from the folder with its name below a root, `TENANT=ROOT` gives a root to one tenant, "
        "and `*=ROOT` to all. Empty: imports are off.",
    )
    public_certificates: bool = Field(
        False,
        description="Serve keys, the certificate log and single certificates without an API key. Listings "
        "always need one.",
    )

    dashboard: bool = Field(True, description="Serve the dashboard at `/`.")
    session_hours: float = Field(
        8.0, gt=0, le=168, description="How long a user stays signed in to the dashboard."
    )
    secure_cookies: bool | None = Field(
        None,
        description="Send the dashboard's cookies over https only. Unset: if the request came over https. "
        "Set it to true behind a proxy that terminates TLS.",
    )

    public_url: str = Field(
        "",
        pattern=r"^(https?://[^\s?#]+)?$",
        description="The address under which browsers and other services reach the gateway, such as "
        "`https://lethe.example.org`. Needed for sign-in through an identity provider and for OpenDSR.",
    )
    oidc_issuer: str = Field(
        "",
        pattern=r"^(https?://[^\s?#]+)?$",
        description="The OpenID Connect provider through which people sign in to the dashboard, exactly as "
        "its metadata names it. Empty: people sign in with an API key only.",
    )
    oidc_client_id: str = Field("", max_length=200, description="The id of this client at the provider.")
    oidc_client_secret: SecretStr = Field(
        SecretStr(""), description="The client's secret. Empty: a public client, protected by PKCE alone."
    )
    oidc_scope: str = Field(
        "openid profile",
        pattern=r"^openid( [!-~]+)*$",
        description="The OAuth scopes to ask the provider for. Add the one that returns groups, if it needs "
        "one.",
    )
    oidc_groups_claim: str = Field(
        "groups", min_length=1, max_length=200, description="The claim that lists a person's groups."
    )
    oidc_groups: str = Field(
        "",
        description='What members of each group may do, as JSON: `{"dpo": {"tenant": "default", '
        '"scopes": ["erasures:read"]}}`. A person gets the tenant of the first group they are in, and '
        "the scopes of all their groups of that tenant.",
    )
    oidc_name_claim: str = Field(
        "",
        max_length=200,
        description="The claim to show as a person's name, such as `name`. The audit log keeps it. Empty: "
        "only a pseudonym is kept.",
    )
    oidc_session_minutes: float = Field(
        60.0,
        gt=0,
        le=10080,
        description="How long a person who came through the provider stays signed in. A group that the "
        "provider removes takes effect at the next sign-in.",
    )

    opendsr_key_file: Path | None = Field(
        None,
        description="The private key (PEM) that signs OpenDSR answers and callbacks for the host of "
        "`LETHE_PUBLIC_URL`. Gateway and dispatcher need it. Unset: no OpenDSR.",
    )
    opendsr_certificate_file: Path | None = Field(
        None, description="The certificate (PEM) of that key, issued by a public authority for that host."
    )
    fides_url: str = Field(
        "",
        pattern=r"^(https?://[^\s?#]+)?$",
        description="The address of Fides, for callbacks whose `reply-to` header is a path.",
    )

    webhook_intranet: bool = Field(
        False,
        description="Allow webhooks to private and loopback addresses, and over http. Use this only in your "
        "own network: every tenant can then reach whatever this machine can.",
    )
    webhook_ca_file: Path | None = Field(
        None,
        description="A PEM file of the certificate authorities to trust for webhook receivers. Unset: the "
        "public ones.",
    )

    signing_key: SecretStr = Field(
        SecretStr(""), description="The signing key as PEM. Only the worker uses it."
    )
    signing_key_file: Path | None = Field(
        None,
        description="The file of the signing key. Unset: `keys/signing.pem` in the data folder.",
    )
    deployment_key_file: Path | None = Field(
        None,
        description="The file of the key that encrypts identifiers. Unset: `keys/deployment.key` in the data "
        "folder.",
    )
    previous_deployment_key_file: Path | None = Field(
        None,
        description="The file of the deployment key that is being replaced. Set it only during a rotation.",
    )
    create_keys: bool | None = Field(
        None,
        description="Create keys whose file is missing. Unset: only if the database and the queue are "
        "embedded.",
    )

    key_renewal_seconds: float = Field(
        3600,
        ge=0,
        description="How long copies of salts and identifiers in the database's files may stay readable with "
        "the deployment key after receipts were acknowledged or have expired, or requests were withdrawn.",
    )
    log_origin: str = Field(
        "lethe",
        pattern=r"^[^\s+]{1,200}$",
        description="The name of the certificate log on its signed tree heads.",
    )
    log_seen_file: Path | None = Field(
        None,
        description="The file in which a worker keeps the newest tree head it has seen, to detect a log that "
        "was rolled back. Unset: `log-head` in the data folder.",
    )

    audit_log_seconds: float = Field(
        600.0,
        gt=0,
        le=86400,
        description="How often a worker signs the newest entry of each tenant's audit log and appends the "
        "statement to the certificate log.",
    )

    device: Literal["auto", "cpu", "cuda", "mps"] = Field(
        "auto",
        description="The device that the worker computes on. `auto`: CUDA if available, otherwise the CPU. "
        "MPS has no float64, so with `mps` the worker computes on that machine's CPU.",
    )
    nproc: int = Field(
        1, ge=1, le=1024, description="How many processes of this machine share the rows of one job."
    )
    rank_timeout_seconds: float = Field(
        600.0,
        gt=0,
        le=86400,
        description="How long one of several processes of a job may be silent before the attempt is given "
        "up. A process that ends is noticed at once.",
    )
    advice_seconds: float = Field(
        60.0,
        ge=0,
        le=86400,
        description="How long a worker may try combinations of λ and Δ* on the holdout, at registration and "
        "for `lethe model advise`. 0: it tries none.",
    )
    heartbeat_seconds: float = Field(
        5.0, gt=0, le=60, description="How often a running attempt sends a heartbeat."
    )
    dead_after_seconds: float = Field(
        0.0,
        ge=0,
        description="How long an attempt may send no heartbeat before it is given up. 0: six intervals.",
    )
    max_attempts: int = Field(
        5,
        ge=1,
        le=100,
        description="How many attempts of a job may end with an error of its own before the job fails. "
        "Faults of the infrastructure, such as an outage of the storage or a killed process, do not count: "
        "an erasure is retried after any number of them.",
    )
    max_deaths: int = Field(
        10,
        ge=1,
        le=1000,
        description="After how many processes that died in a row a job counts as one that kills its worker. "
        "An erasure is still retried, and its history and a webhook say so. Any other job fails.",
    )
    claim_seconds: float = Field(
        120.0,
        gt=0,
        le=3600,
        description="How long the process of an attempt may take to claim its job. Then the worker kills it, "
        "and the job is announced again.",
    )
    retry_backoff_seconds: float = Field(
        2.0,
        ge=0,
        description="The wait before the second attempt. It doubles with each further attempt, up to five "
        "minutes.",
    )
    dispatch_interval_seconds: float = Field(
        0.5, gt=0, le=60, description="The pause between two rounds of the dispatcher."
    )
    lease_seconds: float = Field(10.0, gt=0, description="How long the lease of the active dispatcher lasts.")
    requeue_after_seconds: float = Field(
        10.0,
        gt=0,
        description="How long a message may wait before the dispatcher checks that Redis still has it, and "
        "sends it again if not.",
    )

    sketch_megabytes: int = Field(
        32,
        ge=0,
        le=65536,
        description="How large the curvature sketch of a model may be. An idle worker prepares it, so that "
        "the next erasure takes less time. 0: none are prepared.",
    )
    drain_seconds: float = Field(
        15.0,
        ge=0,
        le=86400,
        description="How long a worker that was asked to stop lets its attempt continue. Then it hands the "
        "job back, and another worker starts it again.",
    )
    linger_seconds: float = Field(
        0.0,
        ge=0,
        le=300,
        description="How long a gateway that was asked to stop keeps serving while it reports that it is not "
        "ready, so that load balancers notice.",
    )
    metrics_token_file: Path | None = Field(
        None,
        description="The file of the bearer token for `/metrics`. Unset: `/metrics` is open and shows the "
        "requests of this process only.",
    )
    otlp_endpoint: str = Field(
        "",
        pattern=r"^(https?://\S+)?$",
        description="The OpenTelemetry collector (OTLP over HTTP), such as `http://collector:4318`. Empty: "
        "no traces.",
    )

    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="The lowest level of log lines to write."
    )
    log_format: Literal["json", "console"] = Field("json", description="The format of log lines.")

    @model_validator(mode="after")
    def _supported_database(self) -> "Settings":
        if self.database_url and not self.database_url.startswith(("sqlite:///", "postgresql+psycopg://")):
            raise ValueError("the URL must start with sqlite:/// or postgresql+psycopg://")
        return self

    @property
    def database(self) -> str:
        """The URL of the database."""
        return self.database_url or f"sqlite:///{self.data_dir.absolute() / 'lethe.db'}"

    @property
    def storage(self) -> str:
        """The URL of the storage."""
        return self.storage_url or f"file://{self.data_dir.absolute() / 'storage'}"

    @property
    def may_create_keys(self) -> bool:
        """Whether a missing key may be created.

        In an installation of several machines, a missing file is a mistake, and a new key in its place would
        be used from then on.
        """
        if self.create_keys is not None:
            return self.create_keys
        return not self.database_url and not self.redis_url

    @property
    def signing_key_path(self) -> Path:
        """The file of the signing key."""
        return self.signing_key_file or self.data_dir / "keys" / "signing.pem"

    @property
    def deployment_key_path(self) -> Path:
        """The file of the deployment key."""
        return self.deployment_key_file or self.data_dir / "keys" / "deployment.key"

    @property
    def log_seen_path(self) -> Path:
        """The file of the newest tree head that a worker on this machine has seen."""
        return self.log_seen_file or self.data_dir / "log-head"

    def file_limit(self, kind: str) -> int:
        """Return the size in bytes that a file of this kind (`FileKind`, `ImportRole`) may have."""
        limits = {"representation": self.max_representation_bytes, "tokenizer": self.max_tokenizer_bytes}
        return min(self.max_upload_bytes, limits.get(kind, self.max_upload_bytes))

    @property
    def dead_after(self) -> float:
        """How long an attempt may send no heartbeat before it is given up, in seconds."""
        return self.dead_after_seconds or 6 * self.heartbeat_seconds


def load_settings(environ: Mapping[str, str] | None = None) -> Settings:
    """Return the settings in the environment. Raise `SettingsError` if one is unknown or malformed."""
    known = {PREFIX + name.upper() for name in Settings.model_fields}
    for name in os.environ if environ is None else environ:
        if name.upper().startswith(PREFIX) and name.upper() not in known and not name.startswith(FOREIGN):
            raise SettingsError(f"{name}: unknown setting; see docs/settings.md")
    try:
        if environ is None:
            return Settings()
        return Settings.model_validate(
            {k.removeprefix(PREFIX).lower(): v for k, v in environ.items() if k.upper() in known}
        )
    except ValidationError as problem:
        first = problem.errors()[0]
        name = PREFIX + str(first["loc"][0]).upper() if first["loc"] else PREFIX + "DATABASE_URL"
        raise SettingsError(f"{name}: {_explain(first)}") from None


def _explain(problem: Mapping[str, Any]) -> str:
    """Say what is wrong with a setting, without repeating its value, which may be a secret."""
    context = problem.get("ctx", {})
    match problem["type"]:
        case "value_error":
            return str(context["error"])
        case "int_parsing" | "int_type" | "int_from_float":
            return "must be a whole number"
        case "float_parsing" | "float_type" | "finite_number":
            return "must be a number"
        case "bool_parsing" | "bool_type":
            return "must be true or false"
        case "greater_than":
            return f"must be greater than {context['gt']}"
        case "greater_than_equal":
            return f"must be at least {context['ge']}"
        case "less_than":
            return f"must be less than {context['lt']}"
        case "less_than_equal":
            return f"must be at most {context['le']}"
        case "literal_error":
            return f"must be {context['expected']}"
        case _:
            return "does not have the required form; see docs/settings.md"
