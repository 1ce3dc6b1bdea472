"""One job on two ranks: the same point and Δ as on one, and a lost rank costs one attempt."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from fastapi.testclient import TestClient
from sqlalchemy import select

from app.core.clock import now
from app.db import transitions
from app.db.states import JobState
from app.db.tables import Job
from app.dispatcher.loop import Dispatcher
from app.services import Services
from tests.integration.harness import ATTEMPTS, MANIFEST, System, create_model
from tests.integration.model_api import Api, newest_statement, work
from tests.integration.ranks import NETWORK, Pair, pair
from worker import queue
from worker.distributed import launch
from worker.distributed.rank0 import ranks_of
from worker.engine.networks.architectures import Mlp, initial_point
from worker.engine.networks.kantorovich import Verdict, certify
from worker.engine.objective import Sampling
from worker.engine.trust_region import Outcome, SolverSettings
from worker.engine.validation import EngineInputError
from worker.errors import OutOfMemory
from worker.fitting import fit
from worker.queue import WorkerRuntime

pytestmark = pytest.mark.slow

SPEC = Mlp((6, 5, 3), "tanh")
SETTINGS = SolverSettings()


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with pytest.MonkeyPatch.context() as patch, pair(tmp_path_factory.mktemp("ranks"), patch) as opened:
        yield opened


def test_two_ranks_reach_the_weights_and_the_distance_of_one(two: Pair) -> None:
    alone, shared = (two.objective(team, MANIFEST) for team in (two.alone, two.two))
    assert (ranks_of(alone), ranks_of(shared)) == (1, 2)
    one, both = (fit(it, it.anchor, target=1e-6, settings=SETTINGS) for it in (alone, shared))
    assert (one.outcome, both.outcome) == (Outcome.CERTIFIED, Outcome.CERTIFIED)
    assert torch.allclose(one.w, both.w, rtol=0, atol=1e-12)
    assert both.distance == pytest.approx(one.distance, rel=1e-6)
    there = shared.evaluate(one.w)
    here = alone.evaluate(one.w)
    assert torch.allclose(there.gradient, here.gradient, rtol=0, atol=1e-14)
    assert abs(there.norm - here.norm) <= there.rounding + here.rounding, "Δ = G/λ differs by rounding alone"
    assert (alone.local._ranks, shared.local._ranks) == (1, 2), "the bound on rounding counts them"


def test_the_ranks_together_hold_all_rows_in_order(two: Pair) -> None:
    alone, shared = (two.objective(team, MANIFEST) for team in (two.alone, two.two))
    picks = torch.tensor([0, 60, 61, 121, 5])
    for found, wanted in zip(shared.rows.sample(picks), alone.rows.sample(picks), strict=True):
        assert torch.equal(found, wanted)
    assert shared.rows.count == 122


def test_samples_products_and_stale_operators_agree_with_one_rank(two: Pair) -> None:
    alone, shared = (two.objective(team, MANIFEST) for team in (two.alone, two.two))
    w, v = torch.linspace(-1, 1, alone.dimension).double(), torch.linspace(1, 2, alone.dimension).double()
    first, _ = shared.hessian(w), shared.hessian(2 * w)
    assert torch.allclose(first.product(v), alone.hvp(w, v), rtol=1e-12), "made anew, at its own point"
    sampled = shared.hessian(w, Sampling(rows=122, seed=1)).product(v)
    assert torch.linalg.vector_norm(sampled - alone.hvp(w, v)) < 0.3 * torch.linalg.vector_norm(sampled)


def test_a_network_is_certified_on_two_ranks_as_on_one(two: Pair) -> None:
    anchor = initial_point(SPEC, seed=3)
    found = []
    for team in (two.alone, two.two):
        objective = two.objective(team, MANIFEST | NETWORK, anchor)
        solution = fit(objective, anchor, target=1e-6, settings=SETTINGS)
        again = torch.Generator().manual_seed(5)
        verdict = certify(
            objective,
            SPEC,
            solution.w,
            target=1e-4,
            failure_probability=1e-9,
            gaussian=partial(torch.randn, generator=again, dtype=torch.float64),
        )
        assert verdict.verdict is Verdict.CERTIFIED
        found.append((solution.w.clone(), verdict))
    (one, alone), (both, shared) = found
    assert torch.allclose(one, both, rtol=0, atol=1e-10)
    assert shared.lipschitz == pytest.approx(alone.lipschitz, rel=1e-9)
    assert shared.floor == pytest.approx(alone.floor, rel=1e-4)
    assert abs(shared.gradient_norm - alone.gradient_norm) <= 2 * (shared.rounding + alone.rounding)


def test_rows_that_one_rank_rejects_are_rejected_by_all(two: Pair) -> None:
    objective = two.objective(two.two, MANIFEST | {"classes": 2})
    with pytest.raises(EngineInputError):
        objective.evaluate(objective.anchor)
    assert two.objective(two.two, MANIFEST).evaluate(torch.zeros(21).double()).value > 0, "the ranks go on"


def test_all_ranks_use_smaller_chunks_when_one_runs_out_of_memory(
    two: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    objective = two.objective(two.two, MANIFEST)
    w = torch.linspace(-1, 1, objective.dimension).double()
    wanted = objective.evaluate(w)
    family, most = type(objective.local), [20]
    residual = family.residual

    def short(self: object, z: torch.Tensor, y: torch.Tensor) -> object:
        if len(y) > most[0]:
            raise torch.OutOfMemoryError("a fake one")
        return residual(self, z, y)

    monkeypatch.setattr(family, "residual", short)
    found = objective.evaluate(w)
    assert objective.local.chunk_rows <= 20
    assert torch.allclose(found.gradient, wanted.gradient, rtol=1e-12)
    most[0] = 0
    with pytest.raises(OutOfMemory, match="memory"):
        objective.evaluate(w)


def test_a_product_sends_one_vector_and_returns_one_sum(two: Pair) -> None:
    objective = two.objective(two.two, MANIFEST)
    operator, connection = objective.hessian(objective.anchor), two.connection
    connection.sent.clear()
    operator.product(torch.ones(objective.dimension).double())
    assert connection.sent == {"orders": 512 + 8 * objective.dimension, "sums": 8 * objective.dimension}


# -- the whole service ----------------------------------------------------------------------------------


@pytest.fixture
def two_ranks(system: System, monkeypatch: pytest.MonkeyPatch) -> Iterator[WorkerRuntime]:
    """The runtime of a worker whose attempts have two ranks. The follower dies in the middle of a solve."""
    services = system.services
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    both = Services(services.settings.model_copy(update={"nproc": 2}))
    runtime = WorkerRuntime(both, ATTEMPTS, launch.Followers("tests.integration.ranks"))
    yield runtime
    runtime.followers.close()
    both.close()


def _run_attempt(runtime: WorkerRuntime) -> Job:
    """Run the waiting job once, and return what became of it."""
    services = runtime.services
    Dispatcher(services).seal_due()
    with services.database.writing() as session:
        job = session.scalars(select(Job).where(Job.state == JobState.WAITING)).one()
        transitions.dispatch(session, job, now())
    queue.run(runtime, str(job.id), str(job.token))
    with services.database.reading() as session:
        return session.get_one(Job, job.id)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_lost_rank_fails_the_attempt_and_the_next_one_completes(
    gateway: TestClient, admin: dict[str, str], services: Services, two_ranks: WorkerRuntime
) -> None:
    create_model(gateway, admin)
    work(services)
    Api(gateway, admin).erase("s1", "s2")
    job = _run_attempt(two_ranks)
    assert (job.state, job.attempt) == (JobState.WAITING, 1)
    assert "another rank" in (job.error or "")
    assert not list((services.settings.data_dir / "scratch").glob("*/")), "no rows are left behind"
    with closing(launch.Followers()) as followers:
        assert _run_attempt(replace(two_ranks, followers=followers)).state == JobState.DONE
    (batch,) = gateway.get("/v1/batches", headers=admin).json()["items"]
    assert batch["state"] == "completed"
    runtime = newest_statement(services).predicate.runtime
    assert (runtime.world_size, runtime.device, runtime.deterministic) == (2, "cpu", True)
    assert "torch.use_deterministic_algorithms=True" in runtime.flags
