"""Checks that a plug-in module can be unlearned, with reasons its author can act on.

The objective must be one smooth function of the parameters and of each row alone. Statistics gathered while
running, randomness and kinks each violate that, and with it every statement of a certificate.
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
# Also with the method `retrain`: its guarantee needs no bound, but every training takes Newton steps.
_WHY_SMOOTH = "and training takes Newton steps, which need second derivatives, as bounds do"
_OR_LINEARISE = "or set linearised = true in the manifest's network"
_LEAST_SOFTPLUS_THRESHOLD = 40.0  # above it the jump to the identity is below float64 rounding


def inspect_module(module: nn.Module, *, width: int, outputs: int | None = None) -> list[str]:
    """Return the reasons for refusing `module`, or an empty list if it maps (c, width) to (c, outputs).

    With `outputs` None, any number of outputs is accepted. The module is copied before it runs and never
    changed.
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
    """Yield the reasons to refuse one submodule."""
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
        yield f"{name} ({kind}) is not twice differentiable, {_WHY_SMOOTH}; {_instead(kind)}"
    if isinstance(part, nn.Softplus) and part.beta * part.threshold < _LEAST_SOFTPLUS_THRESHOLD:
        yield (
            f"{name} ({kind}) jumps to the identity where beta·x reaches {part.threshold:g}; "
            f"set threshold = {_LEAST_SOFTPLUS_THRESHOLD:g}"
        )


def _instead(kind: str) -> str:
    if "pool" in kind.lower():
        return f"use average pooling or a strided convolution, {_OR_LINEARISE}"
    return f"use GELU, SiLU, tanh or softplus, {_OR_LINEARISE}"


class _KinkRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records operations with a kink. A forward pass can call them without a submodule of that name."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Record the operation if it has a kink, then run it."""
        name = func.overloadpacket.__name__
        if name in _KINKED_OPERATIONS:
            self.operations.add(name)
        return func(*args, **(kwargs or {}))


def _running(module: nn.Module, width: int, outputs: int | None) -> Iterator[str]:
    """Yield the reasons that only a forward pass reveals. Training mode makes any variation show."""
    trial = copy.deepcopy(module).double().train()
    generator = torch.Generator().manual_seed(0)
    rows = torch.rand(_ROWS, width, generator=generator, dtype=torch.float64)
    before = {name: buffer.clone() for name, buffer in trial.named_buffers()}
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with _KinkRecorder() as recorder:
                first = trial(rows)
            again = trial(rows)
            alone = trial(rows[:1])
    except Exception as error:  # Any exception from foreign code is a reason to refuse.
        yield f"a forward of {_ROWS} rows of {width} features failed: {type(error).__name__}: {error}"
        return
    yield from _shape(first, outputs)
    for name in sorted(recorder.operations):
        yield f"forward calls {name}, which is not twice differentiable, {_WHY_SMOOTH}; {_instead(name)}"
    for name, buffer in trial.named_buffers():
        if not torch.equal(before[name], buffer):
            yield f"buffer {name} changes in forward, so it remembers rows; make it a constant or a parameter"
    if isinstance(first, Tensor) and isinstance(again, Tensor) and isinstance(alone, Tensor):
        if not torch.equal(first, again):
            yield "two forwards of the same rows differ: the module is random; remove the randomness"
        elif not torch.allclose(first[:1], alone, rtol=1e-9, atol=1e-12):
            yield "a row's output depends on the other rows of its batch; treat each row alone"


def _shape(logits: object, outputs: int | None) -> Iterator[str]:
    """Yield the reasons to refuse the output of a forward pass."""
    if not isinstance(logits, Tensor):
        yield f"forward returns {type(logits).__name__}, not a tensor of logits (rows, outputs)"
        return
    expected = f"({_ROWS}, {outputs if outputs is not None else 'outputs'})"
    right = logits.dim() == 2 and len(logits) == _ROWS and outputs in (None, logits.shape[1])
    if not right:
        yield f"forward returns shape {tuple(logits.shape)} for {_ROWS} rows, not {expected}"
    elif not bool(torch.isfinite(logits).all()):
        yield "forward returns NaN or infinity on rows between 0 and 1"
