"""Why a plug-in module cannot be unlearned, in words its author can act on.

The objective must be one smooth function of the parameters and of each row alone. Statistics gathered while
running, randomness, and kinks each break that, and with it everything a certificate says.
"""

import copy
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

_ROWS = 4
_RUNNING = (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm)
_DROPOUT = nn.modules.dropout._DropoutNd
_KINKED = (
    nn.ReLU,
    nn.ReLU6,
    nn.LeakyReLU,
    nn.PReLU,
    nn.RReLU,
    nn.Hardtanh,
    nn.Hardshrink,
    nn.Hardsigmoid,
    nn.Hardswish,
    nn.Softshrink,
    nn.Threshold,
    nn.ELU,
    nn.CELU,
    nn.SELU,
    nn.MaxPool1d,
    nn.MaxPool2d,
    nn.MaxPool3d,
    nn.AdaptiveMaxPool1d,
    nn.AdaptiveMaxPool2d,
    nn.AdaptiveMaxPool3d,
    nn.FractionalMaxPool2d,
    nn.FractionalMaxPool3d,
)
# fmt: off
_KINKED_OPERATIONS = {
    "relu", "relu_", "leaky_relu", "_prelu_kernel", "elu", "hardtanh", "hardsigmoid", "hardswish",
    "hardshrink", "softshrink", "threshold", "max_pool2d_with_indices", "max_pool3d_with_indices",
    "adaptive_max_pool2d", "abs", "clamp", "clamp_min", "clamp_max", "maximum", "minimum", "amax", "amin",
    "max", "min", "sign", "round", "floor", "ceil",
}
# fmt: on
_LEAST_SOFTPLUS_THRESHOLD = 40.0  # beyond it the jump to the identity is below float64's rounding


def inspect_module(module: nn.Module, *, width: int, outputs: int | None = None) -> list[str]:
    """Reasons for refusing `module`, none if it can be taken: (c, width) -> (c, outputs).

    `outputs` None asks for two dimensions only. The module is copied before it is run, never changed.
    """
    reasons = [
        reason for name, part in module.named_modules() for reason in _part(name or "the module", part)
    ]
    reasons += [
        f"parameter {name} is {parameter.dtype}, not floating point: it has no derivative; make it a constant"
        for name, parameter in module.named_parameters()
        if not parameter.is_floating_point()
    ]
    if not any(True for _ in module.parameters()):
        reasons.append("the module has no parameters: there is nothing to unlearn")
    return reasons or list(_running(module, width, outputs))


def _part(name: str, part: nn.Module) -> Iterator[str]:
    kind = type(part).__name__
    if isinstance(part, _RUNNING) and part.track_running_stats:
        yield (
            f"{name} ({kind}) keeps running statistics of the rows it has seen, erased ones included; "
            "use GroupNorm, or no normalisation"
        )
    elif isinstance(part, nn.modules.batchnorm._BatchNorm):
        yield (
            f"{name} ({kind}) normalises by the other rows of a batch, so a row has no loss of its own; "
            "use GroupNorm, or no normalisation"
        )
    if isinstance(part, _DROPOUT) and part.p > 0:
        yield f"{name} ({kind}) drops at random with p = {part.p}: the loss is not one function; set p = 0"
    if isinstance(part, _KINKED):
        yield f"{name} ({kind}) is not twice differentiable, so the bound does not hold; {_instead(kind)}"
    if isinstance(part, nn.Softplus) and part.beta * part.threshold < _LEAST_SOFTPLUS_THRESHOLD:
        yield (
            f"{name} ({kind}) jumps to the identity where beta·x reaches {part.threshold:g}; "
            f"set threshold = {_LEAST_SOFTPLUS_THRESHOLD:g}"
        )


def _instead(kind: str) -> str:
    if "pool" in kind.lower():
        return "use average pooling or a strided convolution"
    return "use GELU, SiLU, tanh or softplus"


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes operations with a kink: a forward can call them without a submodule of that name."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in _KINKED_OPERATIONS:
            self.seen.add(name)
        return func(*args, **(kwargs or {}))


def _running(module: nn.Module, width: int, outputs: int | None) -> Iterator[str]:
    """What only a forward shows, in training mode, where anything that varies would vary."""
    trial = copy.deepcopy(module).double().train()
    generator = torch.Generator().manual_seed(0)
    rows = torch.rand(_ROWS, width, generator=generator, dtype=torch.float64)
    before = {name: buffer.clone() for name, buffer in trial.named_buffers()}
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with _Watch() as watch:
                first = trial(rows)
            again = trial(rows)
            alone = trial(rows[:1])
    except Exception as error:  # whatever a stranger's forward raises is a reason
        yield f"a forward of {_ROWS} rows of {width} features failed: {type(error).__name__}: {error}"
        return
    yield from _shape(first, outputs)
    for name in sorted(watch.seen):
        yield f"forward calls {name}, which is not twice differentiable; {_instead(name)}"
    for name, buffer in trial.named_buffers():
        if not torch.equal(before[name], buffer):
            yield f"buffer {name} changes in forward, so it remembers rows; make it a constant or a parameter"
    if isinstance(first, Tensor) and isinstance(again, Tensor) and isinstance(alone, Tensor):
        if not torch.equal(first, again):
            yield "two forwards of the same rows differ: the module is random; remove the randomness"
        elif not torch.allclose(first[:1], alone, rtol=1e-9, atol=1e-12):
            yield "a row's output depends on the other rows of its batch; treat each row alone"


def _shape(found: object, outputs: int | None) -> Iterator[str]:
    if not isinstance(found, Tensor):
        yield f"forward returns {type(found).__name__}, not a tensor of logits (rows, outputs)"
        return
    wanted = f"({_ROWS}, {outputs if outputs is not None else 'outputs'})"
    right = found.dim() == 2 and len(found) == _ROWS and outputs in (None, found.shape[1])
    if not right:
        yield f"forward returns shape {tuple(found.shape)} for {_ROWS} rows, not {wanted}"
    elif not bool(torch.isfinite(found).all()):
        yield "forward returns NaN or infinity on rows between 0 and 1"
