"""The head of a PyTorch module goes through the service and comes back certified, on images of digits."""

import ast
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

from lethe import Lethe, ReleaseUnavailable
from lethe.integrations.errors import BadTable, CannotCertify, CannotRebuild
from lethe.integrations.torch import NoiseTooLarge, load, register
from tests.integration.client_world import JOB_SECONDS, World, world

__all__ = ["world"]
PUBLIC = 900
POLICY = {"target_distance": 1e-3, "batch_subjects": 1000, "min_batch_subjects": 1}
DECLARED: dict[str, Any] = {"origin": "a small network trained on public digits", "licence": "Apache-2.0"}


@pytest.fixture
def lethe(world: World) -> Iterator[Lethe]:
    with world.sync() as client:
        yield client


def _network() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(12, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip


@pytest.fixture(scope="module")
def digits() -> tuple[torch.Tensor, torch.Tensor]:
    images, labels = load_digits(return_X_y=True)
    return torch.tensor(images / 16, dtype=torch.float32).reshape(-1, 1, 8, 8), torch.tensor(labels)


@pytest.fixture(scope="module")
def trained(digits: tuple[torch.Tensor, torch.Tensor]) -> nn.Sequential:
    """Return a network trained on the public digits alone, and frozen."""
    torch.manual_seed(1)
    module = _network()
    images, labels = digits[0][:PUBLIC], digits[1][:PUBLIC]
    optimiser = torch.optim.Adam(module.parameters(), 0.01)
    for _ in range(60):
        optimiser.zero_grad()
        nn.functional.cross_entropy(module(images), labels).backward()
        optimiser.step()
    return module.eval().requires_grad_(False)


@pytest.fixture
def module(trained: nn.Sequential) -> Any:
    copy = _network().eval().requires_grad_(False)
    copy.load_state_dict(trained.state_dict())
    return copy


def _people(rows: int) -> list[str]:
    return [f"p{i // 3}" for i in range(rows)]


def _erase(client: Lethe, model: str, *people: str) -> None:
    erasure = client.erasures.create(people, models=[model])
    client.models.flush(model, force=True)
    assert client.erasures.wait(erasure.id, timeout=JOB_SECONDS).state == "completed"


def _optimum(features: np.ndarray, labels: np.ndarray, lam: float) -> np.ndarray:
    from sklearn.linear_model import LogisticRegression

    ones = np.column_stack([features, np.ones(len(features))])
    estimator = LogisticRegression(
        C=1 / (lam * len(labels)), fit_intercept=False, solver="newton-cholesky", tol=1e-12, max_iter=1000
    )
    return np.asarray(estimator.fit(ones, labels).coef_)


def test_the_certified_head_comes_back_into_the_module(
    lethe: Lethe, digits: tuple[torch.Tensor, torch.Tensor], module: Any
) -> None:
    images, labels = digits[0][PUBLIC:], digits[1][PUBLIC:]
    before = {name: value.clone() for name, value in module.state_dict().items()}
    holdout = (digits[0][:100], digits[1][:100])
    model = register(
        lethe, "net", module, images, labels, _people(len(images)),
        lam=1e-2, holdout=holdout, policy=POLICY, **DECLARED,
    )  # fmt: skip
    assert (model.manifest.family, model.manifest.width, model.manifest.classes) == ("softmax", 64, 10)
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())

    with pytest.raises(ReleaseUnavailable, match="has no certificate"):
        load(lethe, "net", module)
    load(lethe, "net", module, certified=False)
    features = module[:-1](images).double().numpy()
    reference = _optimum(features, labels.numpy(), 1e-2)
    np.testing.assert_allclose(module[-1].weight, reference[:, :-1], atol=2e-3)
    np.testing.assert_allclose(module[-1].bias, reference[:, -1], atol=2e-3)

    _erase(lethe, "net", "p1", "p5")
    assert load(lethe, "net", module, keys=lethe.log.keys()) is module
    changed = {name for name, value in module.state_dict().items() if not torch.equal(before[name], value)}
    assert changed == {"7.weight", "7.bias"}
    accuracy = (module(images).argmax(1) == labels).double().mean()
    assert accuracy > 0.93


def test_images_of_bytes_are_stored_as_images_with_their_constants(
    lethe: Lethe, digits: tuple[torch.Tensor, torch.Tensor], module: Any
) -> None:
    """The service scales pixels as `pixels` says, and so gets the features that the module computes here."""
    images, labels = digits[0][PUBLIC:], digits[1][PUBLIC:]
    grey = (images * 16).to(torch.uint8)
    names = [f"digit {i}" for i in range(10)]
    pixels = {"scale": 1 / 8, "mean": [1.0], "std": [2.0]}  # (pixel/8 - 1)/2 = pixel/16 - 1/2
    register(
        lethe, "bytes", module, grey, [names[i] for i in labels], _people(len(images)),
        lam=1e-2, classes=names, pixels=pixels, row_length=50.0, policy=POLICY, **DECLARED,
    )  # fmt: skip
    load(lethe, "bytes", module, certified=False)
    features = module[:-1](images - 0.5).double().numpy()
    reference = _optimum(features, labels.numpy(), 1e-2)
    np.testing.assert_allclose(module[-1].weight, reference[:, :-1], atol=2e-3)


def test_one_output_is_a_logistic_or_a_ridge_regression(
    lethe: Lethe, digits: tuple[torch.Tensor, torch.Tensor], module: Any
) -> None:
    images, labels = digits[0][PUBLIC : PUBLIC + 300], digits[1][PUBLIC : PUBLIC + 300]
    one = nn.Sequential(*module[:-1], nn.Linear(64, 1, bias=False)).eval().requires_grad_(False)
    for name, targets, family in (("even", labels % 2, "logistic"), ("value", labels / 10, "ridge")):
        model = register(lethe, name, one, images, targets, _people(300), lam=0.1, policy=POLICY, **DECLARED)
        assert (model.manifest.family, model.manifest.bias) == (family, False)
        assert load(lethe, name, one, certified=False)(images).shape == (300, 1)


def test_a_public_head_can_be_the_anchor(
    lethe: Lethe, digits: tuple[torch.Tensor, torch.Tensor], module: Any
) -> None:
    """With a very large λ, the trained head stays where the anchor is."""
    images, labels = digits[0][PUBLIC:], digits[1][PUBLIC:]
    public = module[-1].weight.clone()
    register(
        lethe, "anchored", module, images, labels, _people(len(images)),
        lam=1e5, anchor="trained on public digits", policy=POLICY, **DECLARED,
    )  # fmt: skip
    load(lethe, "anchored", module, certified=False)
    torch.testing.assert_close(module[-1].weight, public, atol=1e-3, rtol=0)


def test_only_the_registered_module_gets_the_head(
    lethe: Lethe, digits: tuple[torch.Tensor, torch.Tensor], module: Any
) -> None:
    register(
        lethe, "own", module, digits[0][PUBLIC:], digits[1][PUBLIC:], _people(897),
        lam=1e-2, policy=POLICY, **DECLARED,
    )  # fmt: skip
    with pytest.raises(CannotRebuild, match="the backbone of Sequential is not the one that was registered"):
        load(lethe, "own", _network(), certified=False)
    wider = nn.Sequential(*module[:-1], nn.Linear(64, 11))
    with pytest.raises(CannotRebuild, match="the head 7 has the shapes"):
        load(lethe, "own", wider, certified=False)
    with pytest.raises(CannotRebuild, match=r"has no nn\.Linear named 7"):
        load(lethe, "own", module[:-1], certified=False)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"labels": torch.full((897,), 10)}, BadTable, "row 0, column label: the label is not one of the 10"),
        ({"subjects": ["p"]}, BadTable, "more rows than subject has entries"),
        ({"rows": torch.zeros(897, 1, 8, 8, dtype=torch.int64)}, BadTable, "rows: a 4-dimensional array"),
        ({"rows": torch.zeros(897, 1, 12, 12)}, CannotCertify, "does not take rows of the shape"),
        ({"pixels": {"scale": 1.0}}, BadTable, "pixels: only images of bytes"),
        ({"classes": ["a", "b"]}, BadTable, "classes: the head 7 has 10 outputs, so list 10 classes"),
        ({"holdout": (torch.zeros(2, 4), [0, 1])}, BadTable, "holdout: its rows have the shape"),
    ],
)
def test_bad_rows_are_refused_before_anything_is_created(
    lethe: Lethe,
    digits: tuple[torch.Tensor, torch.Tensor],
    module: Any,
    change: dict[str, Any],
    error: type[Exception],
    message: str,
) -> None:
    given: dict[str, Any] = {"rows": digits[0][PUBLIC:], "labels": digits[1][PUBLIC:]}
    given |= {"subjects": _people(897)} | change
    with pytest.raises(error, match=message):
        register(lethe, "refused", module, lam=1e-2, **given, **DECLARED)
    assert "refused" not in [model.name for model in lethe.models.list()]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({}, "made-up rows, whose features have a length of about"),
        ({"holdout": PUBLIC}, "the holdout, whose features have a length of about"),
        ({"row_length": 100.0}, "rows of the length 100"),
    ],
)
def test_noise_that_would_spoil_the_head_is_noticed_before_anything_is_created(
    lethe: Lethe,
    digits: tuple[torch.Tensor, torch.Tensor],
    module: Any,
    change: dict[str, Any],
    message: str,
) -> None:
    """With the default target distance, the accuracy of this head would vary between 75 % and 99 %."""
    images, labels = digits[0][PUBLIC:], digits[1][PUBLIC:]
    if "holdout" in change:
        change = {"holdout": (digits[0][:PUBLIC], digits[1][:PUBLIC])}
    with pytest.raises(NoiseTooLarge, match=message):  # warnings are errors in tests
        register(lethe, "noisy", module, images, labels, _people(len(images)), lam=1e-2, **change, **DECLARED)
    assert "noisy" not in [model.name for model in lethe.models.list()]


def test_made_up_bytes_are_scaled_as_the_rows_are(
    lethe: Lethe, digits: tuple[torch.Tensor, torch.Tensor], module: Any
) -> None:
    """Pixels scaled to nothing have the features of an empty image."""
    grey = torch.zeros(PUBLIC, 1, 8, 8, dtype=torch.uint8)
    with torch.no_grad():
        length = module[:-1](torch.zeros(1, 1, 8, 8)).norm()
    with pytest.raises(NoiseTooLarge, match=f"a length of about {length:.3g}"):
        register(
            lethe, "dark", module, grey, digits[1][:PUBLIC], _people(PUBLIC),
            lam=1e-2, pixels={"scale": 1e-9}, policy={"target_distance": 1.0}, **DECLARED,
        )  # fmt: skip


TEN_LINES = """\
from lethe import Lethe
from lethe.integrations.torch import load, register
client = Lethe(URL, KEY)
module.requires_grad_(False)
about = {"origin": "a network trained on public digits", "licence": "Apache-2.0"}
register(client, "ten", module, images, labels, people, lam=1e-2, policy={"target_distance": 1e-3}, **about)
erasure = client.erasures.create(["p3"], models=["ten"])
client.models.flush("ten", force=True)
client.erasures.wait(erasure.id)
load(client, "ten", module)
"""


def test_ten_lines_lead_from_the_import_to_a_certified_module(
    world: World, digits: tuple[torch.Tensor, torch.Tensor], module: Any
) -> None:
    assert len(TEN_LINES.splitlines()) == len(ast.parse(TEN_LINES).body) == 10
    images, labels = digits[0][PUBLIC:], digits[1][PUBLIC:]
    names: dict[str, Any] = {"images": images, "labels": labels, "people": _people(len(images))}
    names |= {"URL": world.url, "KEY": world.key, "module": module}
    exec(TEN_LINES, names)
    names["client"].close()
    assert (module(images).argmax(1) == labels).double().mean() > 0.9
