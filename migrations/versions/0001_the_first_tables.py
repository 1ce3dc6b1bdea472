"""The first tables"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None

JSON = sa.JSON(none_as_null=True).with_variant(postgresql.JSONB(none_as_null=True), "postgresql")
BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "deployment",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("key_check", sa.LargeBinary(length=32), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_deployment")),
    )
    op.create_table(
        "leases",
        sa.Column("name", sa.String(length=50), nullable=False),
        sa.Column("holder", sa.Uuid(), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_leases")),
    )
    op.create_table(
        "log_head",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("note", sa.String(length=2000), nullable=False),
        sa.Column("signed_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_log_head")),
    )
    op.create_table(
        "log_nodes",
        sa.Column("level", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("position", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("hash", sa.LargeBinary(length=32), nullable=False),
        sa.PrimaryKeyConstraint("level", "position", name=op.f("pk_log_nodes")),
    )
    op.create_table(
        "signing_keys",
        sa.Column("key_id", sa.String(length=64), nullable=False),
        sa.Column("public_pem", sa.String(length=1000), nullable=False),
        sa.Column("valid_from", sa.BigInteger(), nullable=False),
        sa.Column("valid_until", sa.BigInteger(), nullable=True),
        sa.Column("added_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("key_id", name=op.f("pk_signing_keys")),
    )
    op.create_table(
        "tenants",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tenants")),
        sa.UniqueConstraint("name", name=op.f("uq_tenants_name")),
    )
    op.create_table(
        "workers",
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("seen_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_workers")),
    )
    op.create_table(
        "api_keys",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("digest", sa.LargeBinary(length=32), nullable=False),
        sa.Column("scopes", JSON, nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_api_keys_tenant_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_keys")),
    )
    with op.batch_alter_table("api_keys", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_api_keys_tenant_id"), ["tenant_id"], unique=False)

    op.create_table(
        "erasures",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("reference", sa.String(length=200), nullable=True),
        sa.Column("reason", sa.String(length=200), nullable=True),
        sa.Column("jurisdiction", sa.String(length=50), nullable=True),
        sa.Column("subjects", sa.Integer(), nullable=False),
        sa.Column("received_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("due_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("extended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("extension_reason", sa.String(length=200), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_erasures_tenant_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_erasures")),
    )
    with op.batch_alter_table("erasures", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_erasures_tenant_id"), ["tenant_id"], unique=False)

    op.create_table(
        "idempotency_keys",
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("key_hash", sa.LargeBinary(length=32), nullable=False),
        sa.Column("fingerprint", sa.LargeBinary(length=32), nullable=False),
        sa.Column("erasure_id", sa.Uuid(), nullable=False),
        sa.Column("answer", sa.Text(), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_idempotency_keys_tenant_id")),
        sa.PrimaryKeyConstraint("tenant_id", "key_hash", name=op.f("pk_idempotency_keys")),
        sa.UniqueConstraint("erasure_id", name=op.f("uq_idempotency_keys_erasure_id")),
    )
    with op.batch_alter_table("idempotency_keys", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_idempotency_keys_expires_at"), ["expires_at"], unique=False)

    op.create_table(
        "models",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("manifest", JSON, nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("report", JSON, nullable=True),
        sa.Column("reasons", JSON, nullable=False),
        sa.Column("flush_requested", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint(
            "state IN ('uploading', 'validating', 'ready', 'rejected', 'retired')",
            name=op.f("ck_models_state"),
        ),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_models_tenant_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_models")),
        sa.UniqueConstraint("tenant_id", "name", name=op.f("uq_models_tenant_id_name")),
    )
    op.create_table(
        "certificates",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("model_id", sa.Uuid(), nullable=False),
        sa.Column("chain_index", sa.Integer(), nullable=False),
        sa.Column("mechanism", sa.String(length=16), nullable=False),
        sa.Column("envelope", sa.LargeBinary(), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("evidence", sa.LargeBinary(), nullable=False),
        sa.Column("model_signature", sa.LargeBinary(), nullable=True),
        sa.Column("log_index", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], name=op.f("fk_certificates_model_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_certificates")),
        sa.UniqueConstraint("digest", name=op.f("uq_certificates_digest")),
        sa.UniqueConstraint("log_index", name=op.f("uq_certificates_log_index")),
        sa.UniqueConstraint("model_id", "chain_index", name=op.f("uq_certificates_model_id_chain_index")),
    )
    with op.batch_alter_table("certificates", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_certificates_model_id"), ["model_id"], unique=False)

    op.create_table(
        "dataset_imports",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("model_id", sa.Uuid(), nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("name", sa.String(length=32), nullable=False),
        sa.Column("uri", sa.String(length=1000), nullable=False),
        sa.CheckConstraint("role IN ('train', 'holdout')", name=op.f("ck_dataset_imports_role")),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], name=op.f("fk_dataset_imports_model_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_dataset_imports")),
        sa.UniqueConstraint("model_id", "role", "name", name=op.f("uq_dataset_imports_model_id_role_name")),
    )
    op.create_table(
        "dataset_parts",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("model_id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.String(length=32), nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("path", sa.String(length=500), nullable=False),
        sa.Column("rows", sa.Integer(), nullable=True),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("first_generation", sa.Integer(), nullable=True),
        sa.Column("last_generation", sa.Integer(), nullable=True),
        sa.CheckConstraint("role IN ('train', 'holdout')", name=op.f("ck_dataset_parts_role")),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], name=op.f("fk_dataset_parts_model_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_dataset_parts")),
        sa.UniqueConstraint("path", name=op.f("uq_dataset_parts_path")),
    )
    with op.batch_alter_table("dataset_parts", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_dataset_parts_model_id"), ["model_id"], unique=False)

    op.create_table(
        "jobs",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("model_id", sa.Uuid(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("token", sa.Uuid(), nullable=True),
        sa.Column("run_after", sa.DateTime(timezone=True), nullable=False),
        sa.Column("queued_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("heartbeat_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("error", sa.String(length=1000), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "kind IN ('register', 'unlearn', 'append', 'evaluate', 'audit')", name=op.f("ck_jobs_kind")
        ),
        sa.CheckConstraint(
            "state IN ('waiting', 'queued', 'running', 'done', 'failed')", name=op.f("ck_jobs_state")
        ),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], name=op.f("fk_jobs_model_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs")),
    )
    with op.batch_alter_table("jobs", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_jobs_model_id"), ["model_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_jobs_state"), ["state"], unique=False)

    op.create_table(
        "model_files",
        sa.Column("model_id", sa.Uuid(), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("path", sa.String(length=500), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("kind IN ('weights', 'anchor')", name=op.f("ck_model_files_kind")),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], name=op.f("fk_model_files_model_id")),
        sa.PrimaryKeyConstraint("model_id", "kind", name=op.f("pk_model_files")),
        sa.UniqueConstraint("path", name=op.f("uq_model_files_path")),
    )
    op.create_table(
        "suppressions",
        sa.Column("model_id", sa.Uuid(), nullable=False),
        sa.Column("subject_hash", sa.LargeBinary(length=32), nullable=False),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], name=op.f("fk_suppressions_model_id")),
        sa.PrimaryKeyConstraint("model_id", "subject_hash", name=op.f("pk_suppressions")),
    )
    op.create_table(
        "uploads",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("model_id", sa.Uuid(), nullable=False),
        sa.Column("target", sa.String(length=64), nullable=False),
        sa.Column("total", sa.BigInteger(), nullable=True),
        sa.Column("received", sa.BigInteger(), nullable=False),
        sa.Column("touched_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], name=op.f("fk_uploads_model_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_uploads")),
    )
    with op.batch_alter_table("uploads", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_uploads_model_id"), ["model_id"], unique=False)

    op.create_table(
        "batches",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("model_id", sa.Uuid(), nullable=False),
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("sealed_because", sa.String(length=16), nullable=False),
        sa.Column("policy", JSON, nullable=False),
        sa.Column("step", sa.String(length=16), nullable=True),
        sa.Column("subjects", sa.Integer(), nullable=False),
        sa.Column("records", sa.Integer(), nullable=True),
        sa.Column("shift", JSON, nullable=True),
        sa.Column("progress", JSON, nullable=True),
        sa.Column("held_reason", sa.String(length=24), nullable=True),
        sa.Column("error", sa.String(length=1000), nullable=True),
        sa.Column("sealed_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("completed_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "state IN ('sealed', 'queued', 'running', 'purging', 'completed', 'failed', 'held')",
            name=op.f("ck_batches_state"),
        ),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_batches_job_id")),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], name=op.f("fk_batches_model_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_batches")),
        sa.UniqueConstraint("job_id", name=op.f("uq_batches_job_id")),
    )
    with op.batch_alter_table("batches", schema=None) as batch_op:
        batch_op.create_index(
            "uq_batches_open_model_id",
            ["model_id"],
            unique=True,
            sqlite_where=sa.text("state IN ('sealed', 'queued', 'running', 'purging', 'held')"),
            postgresql_where=sa.text("state IN ('sealed', 'queued', 'running', 'purging', 'held')"),
        )

    op.create_table(
        "outbox",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("function", sa.String(length=100), nullable=False),
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("token", sa.Uuid(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_outbox_job_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_outbox")),
    )
    op.create_table(
        "reports",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("model_id", sa.Uuid(), nullable=False),
        sa.Column("certificate_id", sa.Uuid(), nullable=True),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("result", JSON, nullable=True),
        sa.Column("error", sa.String(length=1000), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("completed_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("kind IN ('evaluation', 'audit', 'membership')", name=op.f("ck_reports_kind")),
        sa.ForeignKeyConstraint(
            ["certificate_id"], ["certificates.id"], name=op.f("fk_reports_certificate_id")
        ),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_reports_job_id")),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], name=op.f("fk_reports_model_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_reports")),
        sa.UniqueConstraint("job_id", name=op.f("uq_reports_job_id")),
    )
    with op.batch_alter_table("reports", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_reports_certificate_id"), ["certificate_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_reports_model_id"), ["model_id"], unique=False)

    op.create_table(
        "batch_events",
        sa.Column("id", BIG, autoincrement=True, nullable=False),
        sa.Column("batch_id", sa.Uuid(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("data", JSON, nullable=False),
        sa.ForeignKeyConstraint(["batch_id"], ["batches.id"], name=op.f("fk_batch_events_batch_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_batch_events")),
    )
    with op.batch_alter_table("batch_events", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_batch_events_batch_id"), ["batch_id"], unique=False)

    op.create_table(
        "held_draws",
        sa.Column("batch_id", sa.Uuid(), nullable=False),
        sa.Column("draft", JSON, nullable=False),
        sa.Column("evidence", sa.LargeBinary(), nullable=False),
        sa.Column("payload", sa.LargeBinary(), nullable=False),
        sa.Column("decision", sa.String(length=8), nullable=True),
        sa.CheckConstraint("decision IN ('approve', 'discard')", name=op.f("ck_held_draws_decision")),
        sa.ForeignKeyConstraint(["batch_id"], ["batches.id"], name=op.f("fk_held_draws_batch_id")),
        sa.PrimaryKeyConstraint("batch_id", name=op.f("pk_held_draws")),
    )
    op.create_table(
        "tasks",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("erasure_id", sa.Uuid(), nullable=False),
        sa.Column("model_id", sa.Uuid(), nullable=False),
        sa.Column("batch_id", sa.Uuid(), nullable=True),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("subjects", sa.Integer(), nullable=False),
        sa.Column("due_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("completed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("receipts_until", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "state IN ('received', 'batched', 'running', 'completed', 'failed', 'withdrawn')",
            name=op.f("ck_tasks_state"),
        ),
        sa.ForeignKeyConstraint(["batch_id"], ["batches.id"], name=op.f("fk_tasks_batch_id")),
        sa.ForeignKeyConstraint(["erasure_id"], ["erasures.id"], name=op.f("fk_tasks_erasure_id")),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], name=op.f("fk_tasks_model_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tasks")),
        sa.UniqueConstraint("erasure_id", "model_id", name=op.f("uq_tasks_erasure_id_model_id")),
    )
    with op.batch_alter_table("tasks", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_tasks_batch_id"), ["batch_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_tasks_erasure_id"), ["erasure_id"], unique=False)
        batch_op.create_index("ix_tasks_model_id_state", ["model_id", "state"], unique=False)
        batch_op.create_index(batch_op.f("ix_tasks_receipts_until"), ["receipts_until"], unique=False)

    op.create_table(
        "versions",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("model_id", sa.Uuid(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("batch_id", sa.Uuid(), nullable=True),
        sa.Column("certificate_id", sa.Uuid(), nullable=True),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("path", sa.String(length=500), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("superseded_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("state IN ('current', 'superseded', 'purged')", name=op.f("ck_versions_state")),
        sa.ForeignKeyConstraint(["batch_id"], ["batches.id"], name=op.f("fk_versions_batch_id")),
        sa.ForeignKeyConstraint(
            ["certificate_id"], ["certificates.id"], name=op.f("fk_versions_certificate_id")
        ),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], name=op.f("fk_versions_model_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_versions")),
        sa.UniqueConstraint("batch_id", name=op.f("uq_versions_batch_id")),
        sa.UniqueConstraint("model_id", "number", name=op.f("uq_versions_model_id_number")),
    )
    op.create_table(
        "task_subjects",
        sa.Column("task_id", sa.Uuid(), nullable=False),
        sa.Column("ordinal", sa.Integer(), nullable=False),
        sa.Column("identifier", sa.LargeBinary(), nullable=True),
        sa.Column("salt", sa.LargeBinary(length=16), nullable=True),
        sa.Column("commitment", sa.LargeBinary(length=32), nullable=True),
        sa.Column("leaf", sa.LargeBinary(length=32), nullable=True),
        sa.Column("no_data", sa.LargeBinary(), nullable=True),
        sa.Column("outcome", sa.String(length=24), nullable=True),
        sa.CheckConstraint(
            "outcome IN ('erased', 'erased_outside_training', 'not_in_training_set')",
            name=op.f("ck_task_subjects_outcome"),
        ),
        sa.ForeignKeyConstraint(["task_id"], ["tasks.id"], name=op.f("fk_task_subjects_task_id")),
        sa.PrimaryKeyConstraint("task_id", "ordinal", name=op.f("pk_task_subjects")),
    )


def downgrade() -> None:
    op.drop_table("task_subjects")
    op.drop_table("versions")
    with op.batch_alter_table("tasks", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_tasks_receipts_until"))
        batch_op.drop_index("ix_tasks_model_id_state")
        batch_op.drop_index(batch_op.f("ix_tasks_erasure_id"))
        batch_op.drop_index(batch_op.f("ix_tasks_batch_id"))

    op.drop_table("tasks")
    op.drop_table("held_draws")
    with op.batch_alter_table("batch_events", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_batch_events_batch_id"))

    op.drop_table("batch_events")
    with op.batch_alter_table("reports", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_reports_model_id"))
        batch_op.drop_index(batch_op.f("ix_reports_certificate_id"))

    op.drop_table("reports")
    op.drop_table("outbox")
    with op.batch_alter_table("batches", schema=None) as batch_op:
        batch_op.drop_index(
            "uq_batches_open_model_id",
            sqlite_where=sa.text("state IN ('sealed', 'queued', 'running', 'purging', 'held')"),
            postgresql_where=sa.text("state IN ('sealed', 'queued', 'running', 'purging', 'held')"),
        )

    op.drop_table("batches")
    with op.batch_alter_table("uploads", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_uploads_model_id"))

    op.drop_table("uploads")
    op.drop_table("suppressions")
    op.drop_table("model_files")
    with op.batch_alter_table("jobs", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_jobs_state"))
        batch_op.drop_index(batch_op.f("ix_jobs_model_id"))

    op.drop_table("jobs")
    with op.batch_alter_table("dataset_parts", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_dataset_parts_model_id"))

    op.drop_table("dataset_parts")
    op.drop_table("dataset_imports")
    with op.batch_alter_table("certificates", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_certificates_model_id"))

    op.drop_table("certificates")
    op.drop_table("models")
    with op.batch_alter_table("idempotency_keys", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_idempotency_keys_expires_at"))

    op.drop_table("idempotency_keys")
    with op.batch_alter_table("erasures", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_erasures_tenant_id"))

    op.drop_table("erasures")
    with op.batch_alter_table("api_keys", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_api_keys_tenant_id"))

    op.drop_table("api_keys")
    op.drop_table("workers")
    op.drop_table("tenants")
    op.drop_table("signing_keys")
    op.drop_table("log_nodes")
    op.drop_table("log_head")
    op.drop_table("leases")
    op.drop_table("deployment")
