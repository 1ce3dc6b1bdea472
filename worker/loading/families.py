"""Model families: from a manifest to an objective of the engine, and the tensors a checkpoint must hold.

A plug-in is an object of the class `Family`, named in the entry-point group `lethe.families` of an installed
distribution. It is imported on the worker only.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from math import prod
from typing import Protocol

import torch
from torch import Tensor

from app.db.manifest import FAMILY_GROUP, Manifest
from worker.engine.families import Logistic, Ridge, Softmax
from worker.engine.objective import Objective
from worker.engine.rows import Rows

Shapes = dict[str, tuple[int, ...]]


class FamilyError(Exception):
    """The manifest's family cannot be used on this worker."""


class FamilyObjective(Objective, Protocol):
    """An objective that knows how its flat vector is laid out as tensors."""

    def flatten(self, parts: Mapping[str, Tensor]) -> Tensor: ...

    def unflatten(self, w: Tensor) -> dict[str, Tensor]: ...


@dataclass(frozen=True)
class Family:
    """A kind of model: its loss in words, its tensors in the order of the flat vector, its objective.

    `classes` is how many labels 0 … classes-1 there are, or None for real targets.
    """

    name: str
    loss: str
    shapes: Callable[[Manifest], Shapes]
    objective: Callable[[Manifest, Rows, Tensor | None], FamilyObjective]
    classes: Callable[[Manifest], int | None]

    def dimension(self, manifest: Manifest) -> int:
        return sum(prod(shape) for shape in self.shapes(manifest).values())

    def flat(self, manifest: Manifest, tensors: Mapping[str, Tensor]) -> Tensor:
        """(d,) in float64, in the order of `shapes`."""
        return torch.cat([tensors[name].reshape(-1).to(torch.float64) for name in self.shapes(manifest)])


def family_of(manifest: Manifest) -> Family:
    if manifest.family in _BUILT_IN:
        return _BUILT_IN[manifest.family]
    found = [entry for entry in entry_points(group=FAMILY_GROUP) if entry.name == manifest.family]
    if not found:
        raise FamilyError(f"the family {manifest.family} is not installed on the worker")
    try:
        loaded = found[0].load()
    except Exception as problem:
        raise FamilyError(
            f"the plug-in of the family {manifest.family} does not load: {type(problem).__name__}"
        ) from None
    if not isinstance(loaded, Family) or loaded.name != manifest.family:
        raise FamilyError(f"the plug-in named {manifest.family} does not give a Family of that name")
    return loaded


def _shapes(manifest: Manifest) -> Shapes:
    outputs = manifest.classes or 1
    expected: Shapes = {"weight": (outputs, manifest.width)}
    return expected | {"bias": (outputs,)} if manifest.bias else expected


def _softmax(manifest: Manifest, rows: Rows, anchor: Tensor | None) -> Softmax:
    assert manifest.classes is not None
    return Softmax(rows, manifest.classes, manifest.lam, anchor, bias=manifest.bias)


def _logistic(manifest: Manifest, rows: Rows, anchor: Tensor | None) -> Logistic:
    return Logistic(rows, manifest.lam, anchor, bias=manifest.bias)


def _ridge(manifest: Manifest, rows: Rows, anchor: Tensor | None) -> Ridge:
    return Ridge(rows, manifest.lam, anchor, bias=manifest.bias)


_BUILT_IN = {
    family.name: family
    for family in (
        Family("softmax", "cross-entropy", _shapes, _softmax, lambda manifest: manifest.classes),
        Family("logistic", "logistic", _shapes, _logistic, lambda _: 2),
        Family("ridge", "half squared error", _shapes, _ridge, lambda _: None),
    )
}
