"""Any module linearised at its anchor, by automatic differentiation (`torch.func`).

The module runs in evaluation mode, so BatchNorm uses the anchor's public statistics and dropout does nothing.
At a kink, the derivative is the one that PyTorch defines for the side on which the computed value lies.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.func import functional_call, jvp, vjp
from torch.nn.attention import SDPBackend, sdpa_kernel

from worker.engine.networks.architectures import Stage

Parts = dict[str, Tensor]


def anchor_shapes(module: nn.Module) -> dict[str, tuple[int, ...]]:
    """Return names and shapes of everything an anchor fixes: parameters and stored floating-point buffers."""
    stored = module.state_dict()
    buffers = {name: b for name, b in module.named_buffers() if name in stored and b.is_floating_point()}
    named = dict(module.named_parameters()) | buffers
    return {name: tuple(tensor.shape) for name, tensor in named.items()}


def trained_names(module: nn.Module, layers: Sequence[str]) -> tuple[str, ...]:
    """Return the parameters in these layers, in the module's order. No layers means every parameter."""
    names = [name for name, _ in module.named_parameters()]
    if not layers:
        return tuple(names)
    return tuple(name for name in names if any(_within(name, layer) for layer in layers))


def missing_layers(module: nn.Module, layers: Sequence[str]) -> list[str]:
    """Return the layers that have no parameter in this module."""
    names = [name for name, _ in module.named_parameters()]
    return [layer for layer in layers if not any(_within(name, layer) for name in names)]


def _within(name: str, layer: str) -> bool:
    return name == layer or name.startswith(f"{layer}.")


def stages_of(module: nn.Module) -> list[Stage]:
    """Return the stages of a module that runs them one after the other, or the whole module as one stage.

    A module has stages if it is an `nn.Sequential`, or if it has a method `stages` that returns them.
    """
    if type(module) is nn.Sequential:
        return [((name,), child) for name, child in module.named_children()]
    stages = getattr(module, "stages", None)
    return stages() if callable(stages) else [(("",), module)]


class _Tail(nn.Module):
    """The stages of a module from `start` on."""

    def __init__(self, module: nn.Module, start: int) -> None:
        super().__init__()
        self.module, self.start = module, start

    def forward(self, x: Tensor) -> Tensor:
        if self.start == 0:
            whole: Tensor = self.module(x)
            return whole
        for _, run in stages_of(self.module)[self.start :]:
            x = run(x)
        return x


class AutomaticNetwork:
    """A module at its anchor.

    `trained` names the parameters that move. Stages before the first of them are a constant function of a
    row; `prepare` computes it, and a network made with `prepared` expects its results as rows.
    """

    def __init__(
        self, module: nn.Module, anchor: Mapping[str, Tensor], trained: Sequence[str], *, prepared: bool
    ) -> None:
        self.module, self.trained = module.eval(), tuple(trained)
        self.prepared = prepared
        stages = stages_of(module)
        moving = [
            any(_within(name, prefix) for name in trained for prefix in prefixes) for prefixes, _ in stages
        ]
        self.start = moving.index(True) if len(stages) > 1 and any(moving) else 0
        self._anchor = {
            dtype: {name: tensor.to(dtype) for name, tensor in anchor.items()}
            for dtype in (torch.float64, torch.float32)
        }
        # Buffers that are not stored, such as position tables, are constants of the architecture.
        self._constants = {
            dtype: {
                name: buffer.to(dtype) if buffer.is_floating_point() else buffer
                for name, buffer in module.named_buffers()
                if name not in anchor
            }
            for dtype in (torch.float64, torch.float32)
        }
        self._tail = _Tail(module, self.start if prepared else 0)
        self._shape: tuple[int, ...] | None = None  # of one prepared row

    def at(self, x: Tensor) -> "AutomaticTangent":
        """Linearise on a chunk of rows, in their dtype. (c, width)"""
        return AutomaticTangent(self, x)

    def prepare(self, x: Tensor) -> Tensor:
        """Return the input of the first stage that moves, flat. (c, width) -> (c, k)"""
        with _plain_attention(), torch.no_grad():
            return self._run(_Head(self.module, self.start), {}, x).flatten(1)

    def learn_shape(self, width: int) -> None:
        """Find the shape of one prepared row, from a row of zeros with `width` features."""
        anchor = next(iter(self._anchor[torch.float64].values()))
        row = torch.zeros(1, width, dtype=torch.float64, device=anchor.device)
        with _plain_attention(), torch.no_grad():
            self._shape = tuple(self._run(_Head(self.module, self.start), {}, row).shape[1:])

    @property
    def prepared_width(self) -> int:
        """Number of values in a prepared row."""
        assert self._shape is not None
        return math.prod(self._shape)

    def anchor(self, dtype: torch.dtype) -> Parts:
        """Return the parameters that move, at the anchor."""
        return {name: self._anchor[dtype][name] for name in self.trained}

    def run(self, parts: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Return the logits with `parts` in place of the anchor's. (c, width) -> (c, outputs)"""
        if self.prepared and self._shape is not None:
            x = x.reshape(-1, *self._shape)
        return self._run(self._tail, parts, x)

    def _run(self, wrapper: nn.Module, parts: Mapping[str, Tensor], x: Tensor) -> Tensor:
        tensors = self._constants[x.dtype] | self._anchor[x.dtype] | dict(parts)
        z: Tensor = functional_call(wrapper, {f"module.{name}": part for name, part in tensors.items()}, (x,))
        return z

    def layer_factors(
        self, x: Tensor, q_of: Callable[[Tensor], Tensor]
    ) -> "dict[str, tuple[Tensor, Tensor, int]]":
        """Return columns, δ and positions of each moving linear or convolutional layer, as `factors` does.

        `q_of` maps the logits to the vector that is pulled back.
        """
        seen: list[tuple[str, nn.Module, Tensor, Tensor]] = []

        def record(name: str, layer: nn.Module) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], Tensor]:
            def hook(_: nn.Module, given: tuple[Tensor, ...], made: Tensor) -> Tensor:
                seen.append((name, layer, given[0].detach(), made))
                return made * 1  # what follows may change its input in place

            return hook

        handles = [
            layer.register_forward_hook(record(name, layer))
            for name, layer in self.module.named_modules()
            if isinstance(layer, nn.Linear | nn.Conv2d) and f"{name}.weight" in self.trained
        ]
        moving = {name: part.detach().requires_grad_() for name, part in self.anchor(x.dtype).items()}
        try:
            with _plain_attention():
                z = self.run(moving, x)
                made = [entry[3] for entry in seen]
                deltas = torch.autograd.grad((z * q_of(z.detach())).sum(), made, allow_unused=True)
        finally:
            for handle in handles:
                handle.remove()
        found: dict[str, tuple[Tensor, Tensor, int]] = {}
        for (name, layer, given, _), delta in zip(seen, deltas, strict=True):
            if delta is None or name in found:
                continue  # A layer that runs twice is represented by its first run.
            columns, flat, positions = _columns(layer, given, delta)
            if columns is not None:
                found[name] = columns, flat, positions
        return found


class _Head(nn.Module):
    """The stages of a module before `stop`."""

    def __init__(self, module: nn.Module, stop: int) -> None:
        super().__init__()
        self.module, self.stop = module, stop

    def forward(self, x: Tensor) -> Tensor:
        for _, run in stages_of(self.module)[: self.stop]:
            x = run(x)
        return x


class AutomaticTangent:
    """The affine map w ↦ z on one chunk: `base` plus `push`, and its transpose `pull`."""

    def __init__(self, network: AutomaticNetwork, x: Tensor) -> None:
        self._network, self._x = network, x
        self._base: Tensor | None = None
        self._pullback: Callable[[Tensor], tuple[Parts]] | None = None

    @property
    def base(self) -> Tensor:
        """N(x; a), (c, outputs)."""
        if self._base is None:
            self._differentiate()
        assert self._base is not None
        return self._base

    def push(self, parts: Mapping[str, Tensor]) -> Tensor:
        """Return ∂N(x; a)·θ for a direction given by parameter name. -> (c, outputs)"""
        at = self._network.anchor(self._x.dtype)
        with _plain_attention():
            pair = jvp(self._function, (at,), ({name: parts[name] for name in at},))
        base, image = pair[0].detach(), pair[1].detach()
        if self._base is None:
            self._base = base
        moved: Tensor = image
        return moved

    def pull(self, q: Tensor) -> Tensor:
        """Return Σ_i ∂N(x_i; a)ᵀ·q_i over the moving parameters. (c, outputs) -> (d,)"""
        if self._pullback is None:
            self._differentiate()
        assert self._pullback is not None
        with _plain_attention():
            (parts,) = self._pullback(q)
        return torch.cat([parts[name].reshape(-1) for name in self._network.trained]).double()

    def _function(self, parts: Parts) -> Tensor:
        return self._network.run(parts, self._x)

    def _differentiate(self) -> None:
        with _plain_attention():
            pair = vjp(self._function, self._network.anchor(self._x.dtype))
        self._base, self._pullback = pair[0].detach(), pair[1]


def _columns(layer: nn.Module, given: Tensor, delta: Tensor) -> tuple[Tensor | None, Tensor, int]:
    """Return a layer's input and δ as feature-major columns, with the number of positions of a row."""
    if isinstance(layer, nn.Conv2d):
        if layer.groups != 1 or isinstance(layer.padding, str):
            return None, delta, 1
        unfolded = nn.functional.unfold(
            given, layer.kernel_size, layer.dilation, layer.padding, layer.stride
        )  # (c, k, positions)
        columns = unfolded.transpose(0, 1).reshape(unfolded.shape[1], -1)
        return columns, delta.flatten(2).transpose(0, 1).reshape(delta.shape[1], -1), unfolded.shape[2]
    positions = math.prod(given.shape[1:-1])
    return given.reshape(-1, given.shape[-1]).T, delta.reshape(-1, delta.shape[-1]).T, positions


@contextmanager
def _plain_attention() -> Iterator[None]:
    """Use the attention that has forward-mode derivatives."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
