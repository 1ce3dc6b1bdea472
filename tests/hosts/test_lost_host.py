"""A host without network or power says no goodbye: both ends of its connections find out by themselves."""

import sys
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from app.supervisor import environment
from tests import eventually
from tests.hosts.cluster import WITHIN, Cluster
from tests.hosts.host import Host
from worker.pipeline import log as certificate_log

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]


def test_locks_of_a_lost_host_are_freed_and_it_knows_that_the_database_is_away(servers: Cluster) -> None:
    host = Host(
        servers.network, "lost", 61, servers.folder, [sys.executable, "-P", "-m", "tests.hosts.holding"]
    )
    host.boot(environment(servers.settings, "worker") | {"PYTHONPATH": str(ROOT)})
    try:
        eventually(lambda: host.said("locked"), within=WITHIN)
        assert not _is_free(servers)
        host.cut()
        eventually(lambda: _is_free(servers))
        eventually(lambda: host.said("away"))
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
