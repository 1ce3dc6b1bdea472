"""Destruction of data keys whose rows were deleted: withdrawn requests, acknowledged and expired receipts.

A worker destroys the keys of the batch that it purges. Everything else that is deleted makes its data key
dirty, and the dispatcher renews such keys some time later, many deletions at once. It does a little in every
round, so that sealing does not have to wait.
"""

from datetime import datetime, timedelta

from app.core import logging
from app.core.storage import StorageError
from app.core.vault import KeyProblem
from app.db import transitions
from app.services import Services

log = logging.get_logger("dispatcher")
TRANSACTIONS_PER_ROUND = 20
FINGERPRINTS_LIVE = timedelta(days=1)
ABANDONED = timedelta(hours=1)
"""After this time, the process that began to create a key is taken to be dead. It cannot finish then."""


def destroy_dirty_keys(services: Services, now: datetime) -> None:
    """Doom the keys that are due, and destroy some of the doomed ones."""
    longest = timedelta(seconds=services.settings.key_renewal_seconds)
    with services.database.writing() as session:
        transitions.retire_fingerprint_keys(session, now - FINGERPRINTS_LIVE)
        transitions.doom_dirty_data_keys(session, now - longest)
        transitions.doom_unused_data_keys(session, now - ABANDONED)
    try:
        destroyed = services.key_renewal.destroy_some(TRANSACTIONS_PER_ROUND)
    except KeyProblem as problem:
        log.error("a data key cannot be replaced", problem=str(problem))
    except (OSError, StorageError) as problem:  # the next round tries again
        log.warning("could not destroy data keys", problem=type(problem).__name__)
    else:
        if destroyed:
            log.info("destroyed data keys", keys=destroyed)
