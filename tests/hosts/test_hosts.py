"""Hosts are killed and cut off during their work. No request is lost, and no batch runs twice.

LETHE_TEST_HOST_MODELS sets the number of models. More models mean more faults.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import func, select

from app.db.tables import WorkerSeen
from tests import eventually
from tests.hosts import history
from tests.hosts.checks import check_all_certificates, check_nothing_lost_and_nothing_twice
from tests.hosts.cluster import WITHIN, Cluster
from tests.hosts.faults import Faults
from tests.hosts.people import People

pytestmark = pytest.mark.slow
MODELS = int(os.environ.get("LETHE_TEST_HOST_MODELS", "3"))
ROUNDS = 1  # of requests per model, in addition to those that the faults send
TRIES = 5


@pytest.fixture(scope="module")
def people(cluster: Cluster) -> People:
    people = People(cluster, subjects=2 * (ROUNDS + 5) * MODELS + 40)
    people.register("m0", "m1")
    return people


def _pair(cluster: Cluster, people: People) -> tuple[list[history.Run], float]:
    """Erase from two models at the same time. Return the runs and how many seconds they took together."""
    before = set(history.runs(cluster.services))
    for model in ("m0", "m1"):
        people.ask([model])
    people.wait_until_all_is_done()
    new = [run for run in history.runs(cluster.services) if run not in before]
    took = max(run.ended for run in new) - min(run.begun for run in new)
    return new, took.total_seconds()


def test_two_workers_work_at_two_models_at_once(cluster: Cluster, people: People) -> None:
    alone, took_alone = _pair(cluster, people)
    assert history.most_at_once(alone) == 1, "one worker ran two batches at once"
    for name in ("worker2", "worker3"):
        cluster.boot(name)
    eventually(lambda: _workers(cluster) == 3, within=WITHIN)
    for _ in range(TRIES):  # on a busy machine, one may not start until the other has ended
        beside, took_beside = _pair(cluster, people)
        if history.most_at_once(beside) == 2:
            break
    assert history.most_at_once(beside) == 2
    print(
        f"\ntwo models: {took_alone:.1f} s by one worker, {took_beside:.1f} s by two or more: "
        f"{took_alone / took_beside:.2f} times as fast"
    )


def _workers(cluster: Cluster) -> int:
    return cluster.look(select(func.count(WorkerSeen.name))) or 0


def test_nothing_is_lost_or_done_twice_when_hosts_are_cut_off_and_killed(
    cluster: Cluster, people: People, tmp_path: Path
) -> None:
    with cluster.client(cluster.hosts["gateway1"]) as lethe:
        head = lethe.log.tree_head()
    people.register(*(f"m{n}" for n in range(len(people.models), MODELS)))
    faults = Faults(cluster, people)
    with ThreadPoolExecutor() as pool:
        asking = pool.submit(people.keep_asking, ROUNDS)
        _inject_faults(faults)
        while not asking.done():
            _inject_faults(faults)
        asking.result()
    people.wait_until_all_is_done()
    check_nothing_lost_and_nothing_twice(cluster, people)
    with cluster.client(cluster.hosts["gateway2"]) as lethe:
        checked = check_all_certificates(lethe, people.models, head, tmp_path)
    _print_summary(cluster, people, faults, checked)


def _inject_faults(faults: Faults) -> None:
    dispatcher = faults.kill_the_active_dispatcher()
    worker = faults.kill_a_worker()
    gateway = faults.kill_a_gateway()
    faults.cut_off_a_worker()  # one of three is down, so one of the other two takes over
    faults.bring_back(worker, gateway, dispatcher)
    faults.cut_off_a_gateway()
    faults.cut_off_the_active_dispatcher()
    faults.restart_a_server(faults.cluster.queue)
    faults.restart_a_server(faults.cluster.database)


def _print_summary(cluster: Cluster, people: People, faults: Faults, checked: int) -> None:
    runs = history.runs(cluster.services)
    print(
        f"\n{len(people.models)} models, {len(people.acknowledged)} requests ({people.repeated} times sent "
        f"again), {checked} batches in {len(runs)} attempts, up to {history.most_at_once(runs)} at once"
    )
    print("\n".join(faults.done))
