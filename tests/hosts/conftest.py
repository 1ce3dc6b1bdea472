"""A network of hosts for all tests of one file. It is taken down however they end."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.hosts.cluster import Cluster
from tests.hosts.network import Network, missing


@pytest.fixture(scope="module")
def servers() -> Iterator[Cluster]:
    """PostgreSQL with its tables and Valkey; the other hosts are off."""
    if why := missing():
        pytest.skip(f"MANY HOSTS NOT TESTED: {why}")
    with (
        pytest.MonkeyPatch.context() as patch,
        TemporaryDirectory(prefix="lethe-hosts-") as folder,
        Network() as network,
        ExitStack() as ending,
    ):
        patch.setenv("NO_PROXY", "*")  # a proxy of the surroundings does not know these addresses
        made = Cluster(network, Path(folder))
        ending.callback(made.close)
        made.start_servers()
        yield made


@pytest.fixture(scope="module")
def cluster(servers: Cluster) -> Cluster:
    """With gateways, dispatchers and one worker."""
    servers.start_parts()
    return servers
