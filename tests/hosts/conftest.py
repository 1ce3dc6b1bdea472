"""A network of hosts for all tests of one file. It is always removed at the end."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.hosts.cluster import Cluster
from tests.hosts.network import Network, missing


@pytest.fixture(scope="module")
def servers() -> Iterator[Cluster]:
    """Start PostgreSQL and Valkey. The other hosts are off."""
    if why := missing():
        pytest.skip(f"MANY HOSTS NOT TESTED: {why}")
    with (
        pytest.MonkeyPatch.context() as patch,
        TemporaryDirectory(prefix="lethe-hosts-") as folder,
        Network() as network,
        ExitStack() as ending,
    ):
        patch.setenv("NO_PROXY", "*")  # no proxy can reach these addresses
        hosts = Cluster(network, Path(folder))
        ending.callback(hosts.close)
        hosts.start_servers()
        yield hosts


@pytest.fixture(scope="module")
def cluster(servers: Cluster) -> Cluster:
    """Start gateways, dispatchers and one worker too."""
    servers.start_parts()
    return servers
