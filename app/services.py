"""The one composition root: settings → database, Redis, queue, storage, vault."""

from dataclasses import dataclass
from functools import cached_property

from redis import Redis
from rq import Queue

from app import queueing
from app.access.cache import CallerCache
from app.db.deployment import open_vault
from app.db.refusals import KEYED_HASH
from app.db.session import Database
from app.embedded import redis_url
from app.settings import Settings
from app.storage import Storage
from app.tracing import Tracer, open_tracer
from app.vault import Vault


@dataclass(frozen=True)
class Services:
    """What a part of the system may ask for; each is made when first asked for, once."""

    settings: Settings

    @cached_property
    def database(self) -> Database:
        self.settings.data_dir.mkdir(parents=True, exist_ok=True)
        database = Database(self.settings.database)
        database.info[KEYED_HASH] = lambda text, *, purpose: self.vault.keyed_hash(text, purpose=purpose)
        return database

    @cached_property
    def redis(self) -> Redis:
        return queueing.connect(redis_url(self.settings))

    @cached_property
    def queue(self) -> Queue:
        return queueing.open_queue(self.settings.queue_name, self.redis)

    @cached_property
    def storage(self) -> Storage:
        return Storage(self.settings.storage, self.settings.storage_endpoint)

    @cached_property
    def callers(self) -> CallerCache:
        return CallerCache()

    @cached_property
    def vault(self) -> Vault:
        return open_vault(self.settings, self.database)

    @cached_property
    def tracer(self) -> Tracer:
        return open_tracer(self.settings)

    def close(self) -> None:
        if "tracer" in self.__dict__:
            self.tracer.close()
        if "database" in self.__dict__:
            self.database.close()
        if "redis" in self.__dict__:
            self.redis.close()
