"""Modules: finds the linear head of a PyTorch module and exports everything before it as ONNX.

Nothing here sees a training row. Modules are tried on made-up rows only.
"""

import hashlib
import json
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lethe.integrations.errors import CannotCertify, require_libraries

INPUT, OUTPUT = "rows", "features"
_OPSET = 17
_PROBE_ROWS = 4
NEAREST = (
    "Lethe certifies a linear head on a frozen backbone. Put one nn.Linear last, and freeze all that comes "
    "before it"
)


@dataclass(frozen=True)
class Head:
    """The linear layer at the end of a module, and its name there."""

    name: str
    layer: Any

    @property
    def has_bias(self) -> bool:
        """Whether the layer adds a bias."""
        return self.layer.bias is not None


def find_head(module: Any, name: str | None = None) -> Head:
    """Return the last `nn.Linear` of a module, or the one that is named.

    Raise `CannotCertify` if there is none, or if the backbone before it is not frozen.
    """
    from torch import nn

    kind = type(module).__name__
    layers = {found: layer for found, layer in module.named_modules() if isinstance(layer, nn.Linear)}
    if not layers:
        raise CannotCertify(f"{kind}: it has no nn.Linear that could be the head. {NEAREST}")
    if name is not None and name not in layers:
        raise CannotCertify(f"head: {kind} has no nn.Linear named {name}. It has {', '.join(layers)}")
    if module in layers.values():
        raise CannotCertify(
            f"{kind}: it is a head without a backbone. Register its inputs as features, for example with "
            "LogisticRegression and lethe.integrations.sklearn"
        )
    chosen = list(layers)[-1] if name is None else name
    head = Head(chosen, layers[chosen])
    _check_frozen(module, head)
    return head


def _check_frozen(module: Any, head: Head) -> None:
    """Raise unless the parameters before the head are frozen."""
    own = {id(parameter) for parameter in head.layer.parameters()}
    trained = [name for name, p in module.named_parameters() if p.requires_grad and id(p) not in own]
    if not trained:
        return
    several = f"{trained[0]} and {len(trained) - 1} more parameters" if len(trained) > 1 else trained[0]
    raise CannotCertify(
        f"{type(module).__name__}: {several} would be trained on rows that can be erased, and only the "
        f"linear head {head.name} can be certified. If the backbone was trained on public data, freeze it: "
        "module.requires_grad_(False). Or train every layer: register_network certifies a whole network, "
        "linearised at weights from public data"
    )


@contextmanager
def evaluating(module: Any) -> Iterator[None]:
    """Put a module in evaluation mode, without gradients, and restore its mode afterwards."""
    import torch

    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for part, training in modes:
            part.training = training


def check_structure(module: Any, head: Head, shape: tuple[int, ...]) -> None:
    """Raise `CannotCertify` unless the module is a function of each row that ends in its head.

    It is tried on made-up rows of this shape. A softmax, its logarithm or a sigmoid may follow the head.
    """
    import torch

    parameter = next(module.parameters())
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn((_PROBE_ROWS, *shape), generator=generator).to(parameter.device, parameter.dtype)
    kind = type(module).__name__
    with evaluating(module):
        try:
            features, logits, output = _run(module, head, rows)
            alone = torch.cat([_run(module, head, rows[i : i + 1])[0] for i in range(_PROBE_ROWS)])
        except (RuntimeError, TypeError, ValueError, IndexError) as problem:
            raise CannotCertify(
                f"{kind}: it does not take rows of the shape {shape}. PyTorch says: {_first_line(problem)}"
            ) from None
    if features.ndim != 2:
        raise CannotCertify(
            f"{kind}: the head {head.name} gets {features.ndim} dimensions, but it needs one vector per row. "
            "Pool or flatten before it"
        )
    if not torch.allclose(alone, features, rtol=1e-3, atol=1e-5):
        raise CannotCertify(
            f"{kind}: what it makes of a row depends on the other rows of the batch. Use layers that treat "
            "each row by itself, for example BatchNorm with running statistics"
        )
    ends = [logits, logits.softmax(-1), logits.log_softmax(-1), logits.sigmoid(), logits.squeeze(-1)]
    if not any(end.shape == output.shape and torch.allclose(end, output, atol=1e-6) for end in ends):
        raise CannotCertify(
            f"{kind}: its output is not that of the head {head.name}, so certifying the head would not "
            f"certify the module. {NEAREST}, or name another layer with head="
        )


def compute_features(module: Any, head: Head, rows: Any) -> Any:
    """Return what the head gets for rows that are not training data, as an array. (rows, width)"""
    import torch

    parameter = next(module.parameters())
    with evaluating(module):
        given = torch.as_tensor(rows).to(parameter.device, parameter.dtype)
        return _run(module, head, given)[0].detach().double().cpu().numpy()


def _run(module: Any, head: Head, rows: Any) -> tuple[Any, Any, Any]:
    """Return what the head gets, what it gives, and what the module gives."""
    seen: list[tuple[Any, Any]] = []
    hook = head.layer.register_forward_hook(lambda _, given, made: seen.append((given[0], made)))
    try:
        output = module(rows)
    finally:
        hook.remove()
    if len(seen) != 1:
        times = "never" if not seen else f"{len(seen)} times"
        raise CannotCertify(
            f"{type(module).__name__}: its forward runs the head {head.name} {times}. {NEAREST}, or name "
            "another layer with head="
        )
    return *seen[0], output


def export_backbone(module: Any, head: Head, shape: tuple[int, ...], *, flat: bool) -> bytes:
    """Return everything before the head as an ONNX graph from `rows` to `features`.

    With `flat`, the graph takes vectors and gives them the shape of the module's rows first.
    """
    import torch
    from torch import nn

    require_libraries("Exporting a module", "onnx")

    class Backbone(nn.Module):
        """The module, cut before its head."""

        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def forward(self, rows: Any) -> Any:
            seen: list[Any] = []
            hook = head.layer.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
            try:
                self.module(rows.reshape(-1, *shape) if flat else rows)
            finally:
                hook.remove()
            return seen[0]

    size = int(torch.Size(shape).numel())
    example = torch.zeros((2, size) if flat else (2, *shape), device=next(module.parameters()).device)
    with TemporaryDirectory(prefix="lethe-") as folder, evaluating(module), warnings.catch_warnings():
        file = Path(folder) / "backbone.onnx"
        warnings.simplefilter("ignore")  # the exporter that needs no further library is called legacy
        try:
            torch.onnx.export(
                Backbone(),
                (example,),
                file,
                dynamo=False,
                opset_version=_OPSET,
                input_names=[INPUT],
                output_names=[OUTPUT],
                dynamic_axes={INPUT: {0: "n"}, OUTPUT: {0: "n"}},
            )
        except Exception as problem:  # the exporter and the tracer have many kinds of error
            raise CannotCertify(
                f"{type(module).__name__}: PyTorch cannot export it as ONNX: {_first_line(problem)}. Replace "
                "that operation, or compute the features yourself and register them as vectors"
            ) from None
        return file.read_bytes()


def digest_backbone(module: Any, head: Head) -> str:
    """Return the SHA-256 of all parameters and buffers except those of the head."""
    own = {id(tensor) for tensor in head.layer.state_dict(keep_vars=True).values()}
    stored = module.state_dict(keep_vars=True).items()
    return digest_tensors(
        {name: t for name, t in stored if id(t) not in own and not name.endswith("num_batches_tracked")}
    )


def digest_tensors(tensors: Mapping[str, Any]) -> str:
    """Return the SHA-256 of the names, types, shapes and values of tensors."""
    import torch

    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        plain = tensor.detach().cpu().contiguous()
        digest.update(f"{name} {plain.dtype} {tuple(plain.shape)}\n".encode())
        digest.update(plain.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def write_anchor(module: Any, to: Path | str) -> Path:
    """Write all parameters of a module as safetensors, named as in the module: the anchor of a network.

    A network needs an anchor that was trained on public data. Its tensors must have the names and shapes that
    the family expects.
    """
    path = Path(to)
    path.write_bytes(to_safetensors(dict(module.named_parameters())))
    return path


def to_safetensors(tensors: Mapping[str, Any]) -> bytes:
    """Return tensors as a safetensors file, in float64 where they have it and in float32 otherwise."""
    import torch

    header: dict[str, Any] = {}
    data: list[bytes] = []
    end = 0
    for name, tensor in tensors.items():
        wide = tensor.dtype == torch.float64
        plain = tensor.detach().cpu().to(torch.float64 if wide else torch.float32).contiguous()
        data.append(plain.numpy().astype("<f8" if wide else "<f4").tobytes())
        start, end = end, end + len(data[-1])
        header[name] = {
            "dtype": "F64" if wide else "F32",
            "shape": list(plain.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header).encode()
    return b"".join([len(text).to_bytes(8, "little"), text, *data])


def _first_line(problem: Exception) -> str:
    return str(problem).partition("\n")[0]
