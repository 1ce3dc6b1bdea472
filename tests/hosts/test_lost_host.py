"""A host that loses its network or power closes no connection. Both ends detect that by themselves."""

import sys
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from app.db import log_store as certificate_log
from app.local.supervisor import environment
from tests import eventually
from tests.hosts.cluster import WITHIN, Cluster
from tests.hosts.host import Host

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]


def test_locks_of_a_lost_host_are_freed_and_it_notices_that_the_database_is_unreachable(
    servers: Cluster,
) -> None:
    host = Host(
        servers.network, "lost", 61, servers.folder, [sys.executable, "-m", "tests.hosts.lock_holder"]
    )
    host.boot(environment(servers.settings, "worker") | {"PYTHONPATH": str(ROOT)})
    try:
        eventually(lambda: host.logged("locked"), within=WITHIN)
        assert not _is_free(servers)
        host.cut()
        eventually(lambda: _is_free(servers))
        eventually(lambda: host.logged("away"))
    finally:
        host.close()


def _is_free(servers: Cluster) -> bool:
    try:
        with servers.services.database.writing() as session:
            session.execute(text("SET LOCAL lock_timeout = '500ms'"))
            certificate_log.lock(session)
    except OperationalError:
        return False
    return True
