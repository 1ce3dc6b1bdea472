"""Model families: the engine's objective for a manifest, and the tensors that its weights consist of.

A plug-in is a `Family` object that an installed distribution names in the entry-point group `lethe.families`.
It is imported on the worker only.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from math import prod
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn

from app.db.manifest import FAMILY_GROUP, NETWORK_FAMILIES, Manifest
from worker.data.activations import prepare_rows
from worker.engine.families import Logistic, Ridge, Softmax
from worker.engine.linearised.automatic import anchor_shapes, trained_names
from worker.engine.linearised.objective import LinearisedObjective
from worker.engine.networks.architectures import AllCnn, Mlp, ResNet18, Spec, build, shapes_of
from worker.engine.networks.objective import NetworkObjective
from worker.engine.objective import Objective, Reduce
from worker.engine.rows import Rows

Shapes = dict[str, tuple[int, ...]]


class FamilyError(Exception):
    """The manifest's family cannot be used on this worker."""


class FamilyObjective(Objective, Protocol):
    """An objective that knows how its flat parameter vector is laid out as tensors."""

    def flatten(self, parts: Mapping[str, Tensor]) -> Tensor:
        """Lay named tensors out as one vector (d,)."""

    def unflatten(self, w: Tensor) -> dict[str, Tensor]:
        """Split a vector (d,) into named tensors."""


def single_rank(tensor: Tensor) -> Tensor:
    """Return the tensor: with one rank, its own sum is the sum over all ranks."""
    return tensor


@dataclass(frozen=True)
class Place:
    """The device of an objective, and how its sums over rows become sums over all ranks.

    With a `scratch` folder, a network of which only some layers are trained keeps what the layers before
    them compute in a file there, so that every pass starts from it. The file has no name and ends with the
    objective. Use it for fits, which pass over the rows many times.
    """

    device: torch.device | str = "cpu"
    reduce: Reduce = single_rank
    scratch: Path | None = None


@dataclass(frozen=True)
class Family:
    """A kind of model: the name of its loss, its tensors in the order of the flat vector, and its objective.

    `classes` is the number of labels 0 … classes-1, or None for real targets. A family without `placed`
    computes on the CPU of one rank.
    """

    name: str
    loss: str
    shapes: Callable[[Manifest], Shapes]
    objective: Callable[[Manifest, Rows, Tensor | None], FamilyObjective]
    classes: Callable[[Manifest], int | None]
    module: Callable[[Manifest], nn.Module] | None = None
    """The module of a network, which registration inspects."""
    placed: Callable[[Manifest, Rows, Tensor | None, Place], FamilyObjective] | None = None
    """The objective on another device, or on a shard of the rows."""
    anchored: Callable[[Manifest], Shapes] | None = None
    """The tensors of an anchor, if they are not those of the weights."""

    def anchor_shapes(self, manifest: Manifest) -> Shapes:
        """Return the tensors that an anchor consists of, in the order of its flat vector."""
        return (self.anchored or self.shapes)(manifest)

    def objective_at(
        self, manifest: Manifest, rows: Rows, anchor: Tensor | None, place: Place
    ) -> FamilyObjective:
        """Build the objective at this place, or on the CPU if the family supports nothing else."""
        if self.placed is None:
            return self.objective(manifest, rows, anchor)
        return self.placed(manifest, rows, anchor, place)

    def dimension(self, manifest: Manifest) -> int:
        """Return the number of parameters d."""
        return sum(prod(shape) for shape in self.shapes(manifest).values())

    def flat_anchor(self, manifest: Manifest, tensors: Mapping[str, Tensor]) -> Tensor:
        """Return an anchor's tensors as one float64 vector, in the order of `anchor_shapes`."""
        shapes = self.anchor_shapes(manifest)
        return torch.cat([tensors[name].reshape(-1).to(torch.float64) for name in shapes])

    def flat(self, manifest: Manifest, tensors: Mapping[str, Tensor]) -> Tensor:
        """Return the tensors as one float64 vector (d,), in the order of `shapes`."""
        return torch.cat([tensors[name].reshape(-1).to(torch.float64) for name in self.shapes(manifest)])


def family_of(manifest: Manifest) -> Family:
    """Return the manifest's family, built in or from a plug-in. Raises `FamilyError` if it cannot be used."""
    if manifest.family in _BUILT_IN:
        return _BUILT_IN[manifest.family]
    entries = [entry for entry in entry_points(group=FAMILY_GROUP) if entry.name == manifest.family]
    if not entries:
        raise FamilyError(
            f"the family {manifest.family} is not installed on the worker: install its plug-in there, or use "
            f"a built-in family ({', '.join(sorted(_BUILT_IN))})"
        )
    try:
        loaded = entries[0].load()
    except Exception as problem:
        raise FamilyError(
            f"the plug-in of the family {manifest.family} does not load: {type(problem).__name__}"
        ) from None
    if not isinstance(loaded, Family) or loaded.name != manifest.family:
        raise FamilyError(f"the plug-in named {manifest.family} does not provide a Family of that name")
    return loaded


def size_problem(manifest: Manifest, family: Family, limit: int) -> str | None:
    """Say that the model has too many parameters, by arithmetic alone: nothing of that size is allocated."""
    parameters = sum(prod(shape) for shape in family.anchor_shapes(manifest).values())
    if parameters <= limit:
        return None
    return (
        f"the model would have {parameters:,} parameters, but max_parameters allows {limit:,}; describe a "
        "smaller model, or ask the operator to raise the setting"
    )


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
    anchored: Callable[[Manifest], Shapes] | None = None,
) -> Family:
    here = Place()
    return Family(
        name,
        loss,
        shapes,
        lambda m, rows, anchor: placed(m, rows, anchor, here),
        classes,
        module,
        placed,
        anchored,
    )


def network_family(name: str, module: Callable[[Manifest], nn.Module], *, regression: bool = False) -> Family:
    """Make a family of networks from a module that maps (c, width) -> (c, classes) or (c, 1).

    Plug-ins and built-in networks both use it. The module's initial values do not matter, because training
    starts from the uploaded anchor. If the manifest asks for it, the network is linearised there.
    """

    def shapes(manifest: Manifest) -> Shapes:
        with torch.device("meta"):
            made = module(manifest)
        every = shapes_of(made)
        return {name: every[name] for name in trained_names(made, trained_layers(manifest))}

    def anchored(manifest: Manifest) -> Shapes:
        with torch.device("meta"):
            return anchor_shapes(module(manifest)) if manifest.linearised else shapes_of(module(manifest))

    def objective(
        manifest: Manifest, rows: Rows, anchor: Tensor | None, place: Place
    ) -> NetworkObjective | LinearisedObjective:
        if manifest.linearised:
            classes = None if regression else _classes(manifest)
            return _linearised(manifest, module(manifest), rows, anchor, place, classes)
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
    return _built_in(
        name, loss, shapes, objective, lambda m: None if regression else m.classes, module, anchored
    )


def trained_layers(manifest: Manifest) -> tuple[str, ...]:
    """Return the layers of a network that are trained, or none for all."""
    return () if manifest.network is None else manifest.network.layers or ()


def _linearised(
    manifest: Manifest,
    module: nn.Module,
    rows: Rows,
    anchor: Tensor | None,
    place: Place,
    classes: int | None,
) -> LinearisedObjective:
    if anchor is None:
        raise FamilyError("a linearised network needs an anchor: upload it")
    layers = trained_layers(manifest)
    prepared = None
    if layers and place.scratch is not None:
        prepared = prepare_rows(rows, module, anchor, layers, device=place.device, scratch=place.scratch)
    return LinearisedObjective(
        rows if prepared is None else prepared,
        module,
        manifest.lam,
        anchor,
        layers=layers,
        prepared=prepared is not None,
        width=rows.width,
        classes=classes,
        reduce=place.reduce,
        device=place.device,
    )


def spec_of(manifest: Manifest) -> Spec:
    """Return the architecture that the manifest of a built-in network describes."""
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
        raise FamilyError(f"the family {manifest.family} needs classes: add it to the manifest")
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
