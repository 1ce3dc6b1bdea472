"""The composition root: everything that a part of the service is built from, made from its settings."""

from dataclasses import dataclass
from functools import cached_property

from redis import Redis
from rq import Queue

from app.core import queue as message_queue
from app.core.settings import Settings
from app.core.storage import Storage
from app.core.tracing import Tracer, open_tracer
from app.core.vault import Vault
from app.db.data_keys import DataKeys
from app.db.deployment import open_vault
from app.db.key_renewal import KeyRenewal
from app.db.key_rotation import KeyRotation
from app.db.session import Database


@dataclass(frozen=True)
class Services:
    """The connections and keys of one process. Each is created on first use and then kept."""

    settings: Settings
    creates_data_dir: bool = True
    bounds_waits: bool = False
    """Whether the database has to answer within `database_seconds`, as for a gateway."""

    @cached_property
    def database(self) -> Database:
        """The database. Its data folder is created if necessary, unless `creates_data_dir` is false."""
        if self.creates_data_dir:
            self.settings.data_dir.mkdir(parents=True, exist_ok=True)
        return Database(
            self.settings.database,
            keyed_hash=self._keyed_hash,
            answer_seconds=self.settings.database_seconds if self.bounds_waits else None,
        )

    def _keyed_hash(self, text: str, *, purpose: str) -> bytes:
        """Hash through the vault, which itself needs the database and is opened on first use."""
        return self.vault.keyed_hash(text, purpose=purpose)

    @cached_property
    def redis(self) -> Redis:
        """The connection to the queue's server."""
        return message_queue.connect(message_queue.redis_url(self.settings))

    @cached_property
    def queue(self) -> Queue:
        """The queue of jobs."""
        return message_queue.open_queue(self.settings.queue_name, self.redis)

    @cached_property
    def wake_up(self) -> message_queue.WakeUp:
        """The way to tell dispatchers that there is work."""
        return message_queue.WakeUp(self.redis, self.settings.queue_name)

    @cached_property
    def storage(self) -> Storage:
        """The storage of weights and datasets."""
        return Storage(self.settings.storage, self.settings.storage_endpoint)

    @cached_property
    def vault(self) -> Vault:
        """The deployment key, checked against the database. Raises `KeyProblem` if it is not usable."""
        return open_vault(self.settings, self.database)

    @cached_property
    def data_keys(self) -> DataKeys:
        """The data keys, whose files are in the storage."""
        return DataKeys(self.database, self.storage, self.vault)

    @cached_property
    def key_renewal(self) -> KeyRenewal:
        """The renewal of data keys, which ends with their destruction."""
        return KeyRenewal(self.database, self.data_keys, self.vault)

    @cached_property
    def key_rotation(self) -> KeyRotation:
        """The rotation of the deployment key."""
        return KeyRotation(self.database, self.storage, self.vault, self.key_renewal)

    @cached_property
    def tracer(self) -> Tracer:
        """The tracer, which does nothing unless a collector is configured."""
        return open_tracer(self.settings)

    def close(self) -> None:
        """Close every connection that was opened."""
        if "tracer" in self.__dict__:
            self.tracer.close()
        if "database" in self.__dict__:
            self.database.close()
        if "wake_up" in self.__dict__:
            self.wake_up.close()
        if "redis" in self.__dict__:
            self.redis.close()
