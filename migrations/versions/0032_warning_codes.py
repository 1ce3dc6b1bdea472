"""Every stored registration report has warning codes, so that nobody has to recognise its sentences"""

import json

import sqlalchemy as sa
from alembic import op

revision = "0032"
down_revision = "0031"

LOOK_STANDARDISED = "the features have means near 0 and variances near 1"  # how the old sentence began
CODE = "features-look-standardised"

models = sa.table("models", sa.column("id", sa.Uuid()), sa.column("report", sa.JSON()))


def upgrade() -> None:
    _add_codes()


def _add_codes() -> None:
    """Add the codes that the sentences of older reports stand for. The code before reads them too."""
    connection = op.get_bind()
    for model_id, stored in connection.execute(sa.select(models.c.id, models.c.report)).all():
        report = json.loads(stored) if isinstance(stored, str) else stored
        if not isinstance(report, dict) or "warning_codes" in report:
            continue
        warnings = report.get("warnings") or ()
        codes = [CODE] if any(str(text).startswith(LOOK_STANDARDISED) for text in warnings) else []
        connection.execute(
            sa.update(models).where(models.c.id == model_id).values(report=report | {"warning_codes": codes})
        )


def downgrade() -> None:
    """Keep the codes: the code before reads them too."""
