"""Built-in families and plug-ins: one registry, and the same layout of the flat vector everywhere."""

import sys
from importlib.metadata import EntryPoint
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from app.db.manifest import Manifest
from worker.data import families
from worker.data.families import Family, FamilyError, family_of
from worker.engine.families import Ridge
from worker.engine.rows import ArrayRows

ORIGINS = {"features": "made up", "constants": "made up"}


def _manifest(family: str, **more: Any) -> Manifest:
    return Manifest.model_validate({"family": family, "width": 3, "lambda": 0.1, "origins": ORIGINS, **more})


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("family", "classes"), [("softmax", 4), ("logistic", None), ("ridge", None)])
def test_a_family_and_the_engine_agree_on_the_flat_vector(
    family: str, classes: int | None, bias: bool
) -> None:
    manifest = _manifest(family, classes=classes, bias=bias)
    found = family_of(manifest)
    rows = ArrayRows(np.eye(3), np.array([0.0, 1.0, 1.0]))
    anchor = torch.arange(found.dimension(manifest), dtype=torch.float64)
    objective = found.objective(manifest, rows, anchor)
    tensors = objective.unflatten(anchor)
    assert {name: tuple(tensor.shape) for name, tensor in tensors.items()} == found.shapes(manifest)
    assert torch.equal(found.flat(manifest, tensors), objective.flatten(tensors))
    assert torch.equal(objective.anchor, anchor)


def _shapes(manifest: Manifest) -> dict[str, tuple[int, ...]]:
    return {"weight": (1, manifest.width)}


PLUGGED = Family(
    "plugged",
    "half squared error",
    _shapes,
    lambda manifest, rows, anchor: Ridge(rows, manifest.lam, anchor, bias=False),
    lambda _: None,
)


def _install(monkeypatch: pytest.MonkeyPatch, value: object) -> None:
    module = ModuleType("a_plug_in")
    module.thing = value  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "a_plug_in", module)
    entry = EntryPoint("plugged", "a_plug_in:thing", "lethe.families")
    monkeypatch.setattr(families, "entry_points", lambda group: [entry] if group == entry.group else [])


def test_a_plug_in_is_found_through_its_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    _install(monkeypatch, PLUGGED)
    manifest = _manifest("plugged", policy={"method": "retrain"})
    assert family_of(manifest) is PLUGGED
    assert PLUGGED.dimension(manifest) == 3


def test_a_plug_in_cannot_replace_a_built_in_family(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EntryPoint("ridge", "a_plug_in:thing", "lethe.families")
    monkeypatch.setattr(families, "entry_points", lambda group: [entry])
    assert family_of(_manifest("ridge")).loss == "half squared error"


@pytest.mark.parametrize("value", ["not a family", Family("other", "", _shapes, PLUGGED.objective, len)])  # type: ignore[arg-type]
def test_a_plug_in_that_provides_something_else_is_refused(
    monkeypatch: pytest.MonkeyPatch, value: object
) -> None:
    _install(monkeypatch, value)
    with pytest.raises(FamilyError, match="does not provide a Family"):
        family_of(_manifest("plugged", policy={"method": "retrain"}))


def test_a_missing_or_broken_plug_in_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = _manifest("plugged", policy={"method": "retrain"})
    with pytest.raises(FamilyError, match=r"plugged is not installed .* or use a built-in family .*mlp"):
        family_of(manifest)
    entry = EntryPoint("plugged", "no_such_module:thing", "lethe.families")
    monkeypatch.setattr(families, "entry_points", lambda group: [entry])
    with pytest.raises(FamilyError, match="does not load: ModuleNotFoundError"):
        family_of(manifest)
