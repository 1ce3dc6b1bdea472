"""One job on two hosts with torchrun. It is repeated when either host loses power."""

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from sqlalchemy import select

from app.core.settings import Settings
from app.db.states import TaskState
from app.db.tables import Task
from app.gateway.auth.scopes import Scope
from app.local.supervisor import environment
from lethe import Lethe
from lethe.certificate.verify import verify
from tests import eventually
from tests.hosts.cluster import WITHIN, Cluster
from tests.hosts.host import Host
from tests.integration.harness import MANIFEST, dataset, key_for
from tests.integration.model_api import newest_statement
from tests.integration.process_group import command, has_joined

pytestmark = pytest.mark.slow
SILENCE = 15.0  # seconds; ranks are forked, so they are apart by less, even on a busy machine


class Ranks:
    """Two hosts with one rank each. The second has the storage, but no queue, database or keys."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.leading, self.following = (self._host(rank) for rank in range(2))
        self.settings = cluster.settings.model_copy(update={"rank_timeout_seconds": SILENCE})

    def _host(self, rank: int) -> Host:
        address = self.cluster.network.address(71)
        started = command(nnodes=2, nproc=1, node_rank=rank, address=address)
        return Host(self.cluster.network, f"rank{rank}", 71 + rank, self.cluster.folder, started)

    def boot_leading(self) -> None:
        own = self.settings.model_copy(update={"data_dir": self.leading.folder})
        self.leading.boot(environment(own, "worker"))

    def boot_following(self) -> None:
        own = Settings(
            data_dir=self.following.folder,
            storage_url=self.settings.storage_url,
            rank_timeout_seconds=SILENCE,
        )
        self.following.boot(environment(own, "worker"))

    def wait_until_joined(self) -> None:
        def look() -> bool:
            return any(has_joined(psutil.Process(pid)) for pid in self.following.processes())

        eventually(look, within=WITHIN, every=0.001)

    def close(self) -> None:
        for host in (self.leading, self.following):
            host.close()


@pytest.fixture(scope="module")
def ranks(servers: Cluster) -> Iterator[Ranks]:
    admin = key_for(servers.services, "hosts", Scope.ADMIN)
    servers.api_key = admin["Authorization"].removeprefix("Bearer ")
    for name in ("dispatcher1", "gateway1"):
        servers.boot(name)
    both = Ranks(servers)
    both.boot_leading()
    both.boot_following()
    servers.wait_for_gateway(servers.hosts["gateway1"])
    yield both
    both.close()


@pytest.fixture(scope="module")
def lethe(ranks: Ranks) -> Iterator[Lethe]:
    with ranks.cluster.client(ranks.cluster.hosts["gateway1"]) as client:
        client.models.create("toy", MANIFEST)
        client.models.upload_part("toy", "part0", dataset())
        client.models.validate("toy")
        client.models.wait_ready("toy", timeout=WITHIN)
        yield client


def test_an_erasure_is_done_and_certified_by_both_hosts(ranks: Ranks, lethe: Lethe, tmp_path: Path) -> None:
    lethe.erasures.create(("s0", "s1"))
    _check_done_by_both(ranks, lethe, tmp_path)


def test_it_is_done_again_when_the_leading_host_loses_its_power(
    ranks: Ranks, lethe: Lethe, tmp_path: Path
) -> None:
    lethe.erasures.create(("s2", "s3"))
    ranks.wait_until_joined()
    ranks.leading.power_off()
    ranks.boot_leading()
    _check_done_by_both(ranks, lethe, tmp_path)


def test_it_is_done_again_when_the_following_host_loses_its_power(
    ranks: Ranks, lethe: Lethe, tmp_path: Path
) -> None:
    lethe.erasures.create(("s4", "s5"))
    ranks.wait_until_joined()
    ranks.following.power_off()
    ranks.boot_following()
    _check_done_by_both(ranks, lethe, tmp_path)


def _check_done_by_both(ranks: Ranks, lethe: Lethe, folder: Path) -> None:
    open_task = select(Task.id).where(Task.state != TaskState.COMPLETED).limit(1)
    eventually(lambda: ranks.cluster.look(open_task) is None, within=WITHIN, every=0.2)
    assert newest_statement(ranks.cluster.services).predicate.runtime.world_size == 2
    newest = next(version for version in lethe.versions.list("toy") if version.state == "current")
    assert newest.certificate_id is not None
    pack = lethe.certificates.pack(newest.certificate_id).to_bytes()
    model = lethe.versions.download("toy", folder / "toy.safetensors")
    assert not verify(pack, weights=model, keys=lethe.log.keys()).failed
