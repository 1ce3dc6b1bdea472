"""Whole PyTorch networks: registers one to be linearised at its weights, and serves the certified result.

The service has its own code for the families mlp, allcnn and resnet18, and for plug-ins. It never receives a
module, only weights. Here a module is recognised as one of these families, or its plug-in is named.
"""

import copy
import json
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from lethe.client.responses import Model
from lethe.integrations.errors import BadTable, CannotCertify, CannotRebuild, require_libraries
from lethe.integrations.modules import digest_tensors, to_safetensors
from lethe.integrations.registration import register_files
from lethe.integrations.released_weights import ReleasedWeights
from lethe.integrations.tables import as_array, split_holdout, write_parquet

if TYPE_CHECKING:
    from lethe.client.api import Lethe

NETWORK_ANNOTATION = "torch-network"
_PURPOSE = "The integration with PyTorch"
_ACTIVATIONS = {"ReLU": "relu", "GELU": "gelu", "SiLU": "silu", "Tanh": "tanh"}
_ADVICE = (
    "Lethe recognises an nn.Sequential of linear layers or of 3x3 convolutions, with one kind of activation. "
    "For any other module, install a plug-in with its code on the worker and pass its name as family="
)


@dataclass(frozen=True)
class Recognised:
    """The family and shape of a module in a manifest, and the service's name for each of its tensors."""

    family: str
    network: dict[str, Any]
    names: dict[str, str]  # the service's name by the module's own


def register_network(
    client: "Lethe",
    name: str,
    module: Any,
    rows: Any,
    labels: Any,
    subjects: Any,
    *,
    lam: float,
    anchor: str,
    layers: Sequence[str] = (),
    family: str | None = None,
    network: Mapping[str, Any] | None = None,
    holdout: tuple[Any, ...] | None = None,
    classes: Sequence[Hashable] | None = None,
    policy: Mapping[str, Any] | None = None,
    origins: Mapping[str, str] | None = None,
    wait: bool = True,
    timeout: float | None = None,
) -> Model:
    """Register a whole network as the model `name`, linearised at its present weights.

    The present weights are the anchor, and `anchor` says on which public data they were trained. They must
    not depend on rows that can be erased. `rows` are floats with one row per record; the service sees them
    flat.
    `layers` names the layers to train, as the module calls them. By default all are trained.

    The module must be an `nn.Sequential` that Lethe recognises as an mlp or allcnn. For any other module,
    name the `family` of the plug-in that provides its code on the worker, or a built-in family with its shape
    in `network`. Names of tensors are then those of the module.

    Raise `CannotCertify` if the module is not recognised.
    """
    require_libraries(_PURPOSE, "torch", "pyarrow", "numpy")
    array = _flat_rows(rows)
    known = recognise(module, _shape(rows)) if family is None else _named(module, family, network)
    outputs = _outputs(module, rows)
    manifest = _manifest(module, known, layers, classes) | {
        "width": int(array.shape[1]),
        "classes": outputs,
        "lambda": lam,
        "origins": {
            "features": "as uploaded",
            "constants": "set by the owner",
            **(origins or {}),
            "anchor": anchor,
        },
        "policy": dict(policy or {}),
    }
    listed = classes or range(outputs)
    with TemporaryDirectory(prefix="lethe-") as folder:
        data = _write(Path(folder) / "data", array, labels, subjects, listed)
        held = None if holdout is None else _write_holdout(Path(folder), holdout, listed)
        return register_files(
            client,
            name,
            manifest,
            data=data,
            holdout=held,
            anchor=to_safetensors({known.names[own]: tensor for own, tensor in _stored(module).items()}),
            wait=wait,
            timeout=timeout,
        )


def _manifest(
    module: Any, known: Recognised, layers: Sequence[str], classes: Sequence[Hashable] | None
) -> dict[str, Any]:
    """Return what follows from the module and the layers to train."""
    chosen = [_service_layer(known, layer) for layer in layers]
    return {
        "family": known.family,
        "network": known.network | {"linearised": True} | ({"layers": chosen} if chosen else {}),
        "annotations": {NETWORK_ANNOTATION: json.dumps(_describe(module, known, classes))},
    }


def _write_holdout(folder: Path, holdout: tuple[Any, ...], classes: Sequence[Hashable]) -> Path:
    rows, labels, subjects = split_holdout(holdout)
    return _write(folder / "holdout", _flat_rows(rows), labels, subjects, classes)


def load_network(released: ReleasedWeights, name: str, module: Any) -> Any:
    """Return the certified network: the registered module, linearised at its anchor.

    The module must hold the weights it was registered with, because they are the anchor.
    """
    import torch

    described = json.loads(released.model.manifest.annotations[NETWORK_ANNOTATION])
    stored = _stored(module)
    if digest_tensors(stored) != described["anchor_sha256"]:
        raise CannotRebuild(
            f"{type(module).__name__} does not hold the weights that {name} was registered with. They are "
            "the anchor at which it is linearised: load them first"
        )
    own = {service: mine for mine, service in described["names"].items()}
    theta = {}
    for tensor in released.tensors:
        mine = own[tensor]
        trained = torch.from_numpy(released.array(tensor).copy()).to(torch.float64)
        theta[mine] = trained - stored[mine].detach().cpu().to(torch.float64)
    return linearised(module, stored, theta)


def linearised(module: Any, anchor: Mapping[str, Any], theta: Mapping[str, Any]) -> Any:
    """Return a module that computes N(x; a) + ∂N(x; a)·θ in one forward-mode pass.

    `anchor` holds the tensors of the module by name. `theta` is w - a, where w are the released weights;
    tensors that were not trained are left out. A pass takes about three times as long as a pass of an MLP or
    CNN itself, longer with normalisation layers, and about twice its memory for activations.
    """
    import torch
    from torch import nn
    from torch.func import functional_call, jvp
    from torch.nn.attention import SDPBackend, sdpa_kernel

    class Linearised(nn.Module):
        """A network linearised at its anchor. It is always in evaluation mode."""

        def __init__(self) -> None:
            super().__init__()
            self.module = copy.deepcopy(module).eval().requires_grad_(False)
            self.module.load_state_dict(dict(anchor), strict=False)
            own = dict(self.module.named_parameters())
            if unknown := sorted(set(theta) - set(own)):
                raise CannotRebuild(f"{type(module).__name__} has no parameter {unknown[0]}")
            self.names = tuple(name for name in own if name in theta)
            for index, name in enumerate(self.names):
                parameter = own[name]
                moved = torch.as_tensor(theta[name]).to(parameter.device, parameter.dtype)
                self.register_buffer(f"theta_{index}", moved.reshape(parameter.shape))

        def train(self, mode: bool = True) -> Any:  # noqa: ARG002
            """Stay in evaluation mode: the derivative belongs to the network as it was certified."""
            return super().train(False)

        def forward(self, *rows: Any) -> Any:
            """Return the outputs of the linearised network."""
            own = dict(self.module.named_parameters())
            at = {name: own[name] for name in self.names}
            along = {name: getattr(self, f"theta_{index}") for index, name in enumerate(self.names)}
            fast = torch.backends.mha.get_fastpath_enabled()
            torch.backends.mha.set_fastpath_enabled(False)
            try:
                with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
                    pair = jvp(lambda parts: functional_call(self.module, parts, rows), (at,), (along,))
            finally:
                torch.backends.mha.set_fastpath_enabled(fast)
            return pair[0] + pair[1]

    return Linearised()


# -- recognition --------------------------------------------------------------------------------------------


def recognise(module: Any, shape: tuple[int, ...]) -> Recognised:
    """Return the built-in family that an `nn.Sequential` belongs to, or raise `CannotCertify`."""
    from torch import nn

    kind = type(module).__name__
    if type(module) is not nn.Sequential:
        raise CannotCertify(f"{kind}: it is not an nn.Sequential. {_ADVICE}")
    children = [
        (name, layer) for name, layer in module.named_children() if not isinstance(layer, nn.Identity)
    ]
    linear = [(name, layer) for name, layer in children if isinstance(layer, nn.Linear)]
    activations = {type(layer).__name__ for _, layer in children if type(layer).__name__ in _ACTIVATIONS}
    if len(activations) > 1 or not all(_plain(layer) for _, layer in children):
        raise CannotCertify(f"{kind}: it mixes activations, or one of them has other settings. {_ADVICE}")
    activation = _ACTIVATIONS[activations.pop()] if activations else "relu"
    if linear:
        return _recognise_mlp(kind, children, activation)
    return _recognise_allcnn(kind, children, activation, shape)


def _plain(layer: Any) -> bool:
    """Return whether an activation is the one that the service computes."""
    return getattr(layer, "approximate", "none") == "none"


def _recognise_mlp(kind: str, children: list[tuple[str, Any]], activation: str) -> Recognised:
    from torch import nn

    layers = [entry for entry in children if not isinstance(entry[1], nn.Flatten)]
    pattern = [isinstance(layer, nn.Linear) for _, layer in layers]
    linear = [(name, layer) for name, layer in layers if isinstance(layer, nn.Linear)]
    between = all(type(layer).__name__ in _ACTIVATIONS for _, layer in layers[1::2])
    alternating = len(pattern) % 2 == 1 and all(pattern[::2]) and not any(pattern[1::2]) and between
    if not alternating or len(linear) < 2 or any(layer.bias is None for _, layer in linear):
        raise CannotCertify(
            f"{kind}: its linear layers do not alternate with activations, or lack a bias. {_ADVICE}"
        )
    names = {
        f"{own}.{part}": f"layers.{index}.{part}"
        for index, (own, _) in enumerate(linear)
        for part in ("weight", "bias")
    }
    hidden = [layer.out_features for _, layer in linear[:-1]]
    return Recognised("mlp", {"hidden": hidden, "activation": activation}, names)


def _recognise_allcnn(
    kind: str, children: list[tuple[str, Any]], activation: str, shape: tuple[int, ...]
) -> Recognised:
    from torch import nn

    convolutions = [(name, layer) for name, layer in children if isinstance(layer, nn.Conv2d)]
    body, head = convolutions[:-1], convolutions[-1:]
    tail = [type(layer).__name__ for _, layer in children[2 * len(body) + 1 :]]
    right = (
        len(shape) == 3
        and bool(body)
        and [type(layer).__name__ in _ACTIVATIONS for _, layer in children[: 2 * len(body)]]
        == [False, True] * len(body)
        and all(_same_convolution(layer, 3) for _, layer in body)
        and all(_same_convolution(layer, 1) for _, layer in head)
        and tail == ["AdaptiveAvgPool2d", "Flatten"]
    )
    if not right:
        raise CannotCertify(
            f"{kind}: it is not a series of 3x3 convolutions with activations, a 1x1 convolution, a mean "
            f"over positions and a flattening. {_ADVICE}"
        )
    names = {
        f"{own}.{part}": f"{service}.{part}"
        for own, service in [
            *((own, f"layers.{index}") for index, (own, _) in enumerate(body)),
            (head[0][0], "head"),
        ]
        for part in ("weight", "bias")
    }
    channels = [[layer.out_channels, layer.stride[0]] for _, layer in body]
    return Recognised("allcnn", {"image": list(shape), "channels": channels, "activation": activation}, names)


def _same_convolution(layer: Any, size: int) -> bool:
    return (
        layer.kernel_size == (size, size)
        and layer.padding == (size // 2, size // 2)
        and layer.stride[0] == layer.stride[1]
        and layer.dilation == (1, 1)
        and layer.groups == 1
        and layer.bias is not None
        and (size == 3 or layer.stride == (1, 1))
    )


def _named(module: Any, family: str, network: Mapping[str, Any] | None) -> Recognised:
    return Recognised(family, dict(network or {}), {name: name for name in _stored(module)})


def _service_layer(known: Recognised, layer: str) -> str:
    """Return the service's name of a layer of the module."""
    if layer in known.names:
        return known.names[layer]
    inside = [own for own in known.names if own.startswith(f"{layer}.")]
    if not inside:
        raise CannotCertify(f"layers: the module has no layer {layer} with parameters")
    own, service = inside[0], known.names[inside[0]]
    return layer if own == service else service.rpartition(".")[0]


# -- tensors and rows ---------------------------------------------------------------------------------------


def _stored(module: Any) -> dict[str, Any]:
    """Return everything that an anchor fixes: parameters and stored floating-point buffers."""
    kept = module.state_dict()
    buffers = {name: b for name, b in module.named_buffers() if name in kept and b.is_floating_point()}
    return dict(module.named_parameters()) | buffers


def _describe(module: Any, known: Recognised, classes: Sequence[Hashable] | None) -> dict[str, Any]:
    listed = None if classes is None else [str(entry) for entry in classes]
    return {"names": known.names, "anchor_sha256": digest_tensors(_stored(module)), "classes": listed}


def _shape(rows: Any) -> tuple[int, ...]:
    return tuple(int(side) for side in as_array(rows).shape[1:])


def _flat_rows(rows: Any) -> Any:
    array = as_array(rows)
    if array.dtype.kind != "f" or array.ndim < 2:
        raise BadTable(
            f"rows: a {array.ndim}-dimensional array of {array.dtype} cannot be stored. Pass floats with one "
            "row per record, scaled as the network expects them"
        )
    return array.reshape(len(array), -1)


def _write(to: Path, array: Any, labels: Any, subjects: Any, classes: Sequence[Hashable]) -> Path:
    return write_parquet(
        array, to, subject=subjects, label=as_array(labels), features="features", classes=classes
    ).path


def _outputs(module: Any, rows: Any) -> int:
    import torch

    from lethe.integrations.modules import evaluating

    parameter = next(module.parameters())
    row = torch.zeros((2, *_shape(rows)), dtype=parameter.dtype, device=parameter.device)
    with evaluating(module):
        try:
            outputs = module(row)
        except (RuntimeError, TypeError, ValueError, IndexError) as problem:
            text = str(problem).partition("\n")[0]
            raise CannotCertify(
                f"{type(module).__name__}: it does not take rows of the shape {_shape(rows)}. PyTorch says: "
                f"{text}"
            ) from None
    if outputs.ndim != 2 or outputs.shape[1] < 2:
        raise CannotCertify(
            f"{type(module).__name__}: it gives {tuple(outputs.shape)} for 2 rows, not one number for each "
            "of two classes or more"
        )
    return int(outputs.shape[1])
