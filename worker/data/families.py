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
from torch import Tensor, nn

from app.db.manifest import FAMILY_GROUP, NETWORK_FAMILIES, Manifest
from worker.engine.families import Logistic, Ridge, Softmax
from worker.engine.linear import _alone
from worker.engine.networks.architectures import AllCnn, Mlp, ResNet18, Spec, build, shapes_of
from worker.engine.networks.objective import NetworkObjective
from worker.engine.objective import Objective, Reduce
from worker.engine.rows import Rows

Shapes = dict[str, tuple[int, ...]]


class FamilyError(Exception):
    """The manifest's family cannot be used on this worker."""


class FamilyObjective(Objective, Protocol):
    """An objective that knows how its flat vector is laid out as tensors."""

    def flatten(self, parts: Mapping[str, Tensor]) -> Tensor: ...

    def unflatten(self, w: Tensor) -> dict[str, Tensor]: ...


@dataclass(frozen=True)
class Place:
    """Where an objective computes, and how its sums over rows become sums over all ranks."""

    device: torch.device | str = "cpu"
    reduce: Reduce = _alone


@dataclass(frozen=True)
class Family:
    """A kind of model: its loss in words, its tensors in the order of the flat vector, its objective.

    `classes` is how many labels 0 … classes-1 there are, or None for real targets. A family without `placed`
    computes on the CPU of one rank.
    """

    name: str
    loss: str
    shapes: Callable[[Manifest], Shapes]
    objective: Callable[[Manifest, Rows, Tensor | None], FamilyObjective]
    classes: Callable[[Manifest], int | None]
    module: Callable[[Manifest], nn.Module] | None = None
    """Of a network: what registration inspects."""
    placed: Callable[[Manifest, Rows, Tensor | None, Place], FamilyObjective] | None = None
    """The objective on another device, or on a share of the rows."""

    def objective_at(
        self, manifest: Manifest, rows: Rows, anchor: Tensor | None, place: Place
    ) -> FamilyObjective:
        if self.placed is None:
            return self.objective(manifest, rows, anchor)
        return self.placed(manifest, rows, anchor, place)

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


def _softmax(manifest: Manifest, rows: Rows, anchor: Tensor | None, place: Place) -> Softmax:
    assert manifest.classes is not None
    return Softmax(
        rows,
        manifest.classes,
        manifest.lam,
        anchor,
        bias=manifest.bias,
        reduce=place.reduce,
        device=place.device,
    )


def _logistic(manifest: Manifest, rows: Rows, anchor: Tensor | None, place: Place) -> Logistic:
    return Logistic(rows, manifest.lam, anchor, bias=manifest.bias, reduce=place.reduce, device=place.device)


def _ridge(manifest: Manifest, rows: Rows, anchor: Tensor | None, place: Place) -> Ridge:
    return Ridge(rows, manifest.lam, anchor, bias=manifest.bias, reduce=place.reduce, device=place.device)


def _built_in(
    name: str,
    loss: str,
    shapes: Callable[[Manifest], Shapes],
    placed: Callable[[Manifest, Rows, Tensor | None, Place], FamilyObjective],
    classes: Callable[[Manifest], int | None],
    module: Callable[[Manifest], nn.Module] | None = None,
) -> Family:
    here = Place()
    return Family(
        name, loss, shapes, lambda m, rows, anchor: placed(m, rows, anchor, here), classes, module, placed
    )


def network_family(name: str, module: Callable[[Manifest], nn.Module], *, regression: bool = False) -> Family:
    """A network from its module, (c, width) -> (c, classes) or (c, 1): for plug-ins, and for our own.

    The module's initial values play no part: the anchor is uploaded, and the weights are trained from there.
    """

    def shapes(manifest: Manifest) -> Shapes:
        with torch.device("meta"):
            return shapes_of(module(manifest))

    def objective(manifest: Manifest, rows: Rows, anchor: Tensor | None, place: Place) -> NetworkObjective:
        return NetworkObjective(
            rows,
            module(manifest),
            manifest.lam,
            anchor,
            classes=None if regression else _classes(manifest),
            reduce=place.reduce,
            device=place.device,
            measured=True,
        )

    loss = "half squared error" if regression else "cross-entropy"
    return _built_in(name, loss, shapes, objective, lambda m: None if regression else m.classes, module)


def spec_of(manifest: Manifest) -> Spec:
    """The architecture a manifest of a built-in network describes."""
    network, classes = manifest.network, _classes(manifest)
    assert network is not None
    if network.hidden is not None:
        return Mlp((manifest.width, *network.hidden, classes), network.activation)
    assert network.image is not None
    if network.channels is not None:
        return AllCnn(network.image, classes, network.channels, network.activation)
    assert network.base_width is not None
    assert network.groups is not None
    return ResNet18(network.image, classes, network.base_width, network.groups, network.activation)


def _classes(manifest: Manifest) -> int:
    if manifest.classes is None:
        raise FamilyError(f"the family {manifest.family} needs classes")
    return manifest.classes


_BUILT_IN = {
    family.name: family
    for family in (
        *(network_family(name, lambda manifest: build(spec_of(manifest))) for name in NETWORK_FAMILIES),
        _built_in("softmax", "cross-entropy", _shapes, _softmax, lambda manifest: manifest.classes),
        _built_in("logistic", "logistic", _shapes, _logistic, lambda _: 2),
        _built_in("ridge", "half squared error", _shapes, _ridge, lambda _: None),
    )
}
