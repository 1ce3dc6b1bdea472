"""Checks that a module can be linearised at its anchor, with reasons its author can act on.

The outputs must be one deterministic function of each row alone, and their derivatives must be finite. Kinks
and BatchNorm are fine: the derivative is taken once, at the anchor, in evaluation mode. Sample rows cannot
show that a module behaves so on every row, so a certificate names that as an assumption.
"""

import warnings
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from worker.engine.linearised.automatic import AutomaticNetwork, anchor_shapes, trained_names
from worker.engine.linearised.objective import split_anchor

_ROWS = 4


def inspect_linearised(
    module: nn.Module, anchor: Tensor, *, layers: Sequence[str], width: int, outputs: int
) -> list[str]:
    """Return the reasons for refusing `module`, or an empty list if it maps (c, width) to (c, outputs)."""
    whole = split_anchor(anchor, anchor_shapes(module), torch.device("cpu"))
    names = trained_names(module, layers)
    if not names:
        return ["the module has no parameters: there is nothing to unlearn"]
    network = AutomaticNetwork(module, whole, names, prepared=False)
    generator = torch.Generator().manual_seed(0)
    rows = torch.rand(_ROWS, width, generator=generator, dtype=torch.float64)
    try:
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return list(_problems(network, rows, outputs))
    except Exception as error:  # Any exception from foreign code is a reason to refuse.
        return [
            f"differentiating it on {_ROWS} rows of {width} features failed: {type(error).__name__}: {error}"
        ]


def _problems(network: AutomaticNetwork, rows: Tensor, outputs: int) -> Iterator[str]:
    before = {name: buffer.clone() for name, buffer in network.module.named_buffers()}
    tangent = network.at(rows)
    first, again = tangent.base, network.at(rows).base
    if first.shape != (len(rows), outputs):
        yield f"forward returns shape {tuple(first.shape)} for {len(rows)} rows, not ({len(rows)}, {outputs})"
        return
    for name, buffer in network.module.named_buffers():
        if not torch.equal(before[name], buffer):
            yield f"buffer {name} changes in forward, so it remembers rows; make it a constant or a parameter"
    if not bool(torch.isfinite(first).all()):
        yield "forward returns NaN or infinity on rows between 0 and 1"
        return
    if not torch.equal(first, again):
        yield "two forwards of the same rows differ: the module is random; remove the randomness"
        return
    turned = network.at(rows.flip(0)).base.flip(0)
    alone = torch.cat([network.at(rows[i : i + 1]).base for i in range(len(rows))])
    if not (_close(first, turned) and _close(first, alone)):
        yield "a row's output depends on the other rows of its batch; treat each row alone"
        return
    yield from _derivative_problems(network, rows, first)


def _derivative_problems(network: AutomaticNetwork, rows: Tensor, base: Tensor) -> Iterator[str]:
    generator = torch.Generator().manual_seed(1)
    tangent = network.at(rows)
    q = torch.randn(base.shape, generator=generator, dtype=torch.float64)
    anchor = network.anchor(torch.float64)
    direction = {
        name: torch.randn(part.shape, generator=generator, dtype=torch.float64)
        for name, part in anchor.items()
    }
    image, pulled = tangent.push(direction), tangent.pull(q)
    flat = torch.cat([direction[name].reshape(-1) for name in network.trained])
    if not (bool(torch.isfinite(image).all()) and bool(torch.isfinite(pulled).all())):
        yield "its derivative at the anchor is NaN or infinite; use another anchor or another layer"
        return
    forward, backward = float((image * q).sum()), float(pulled @ flat)
    scale = float(image.norm() * q.norm()) + float(pulled.norm() * flat.norm()) * 1e-6
    if abs(forward - backward) > 1e-8 * max(scale, 1e-300):
        yield (
            "its forward and backward derivatives disagree; an operation of its own may define one of them "
            "wrongly"
        )


def _close(one: Tensor, other: Tensor) -> bool:
    return torch.allclose(one, other, rtol=1e-9, atol=1e-12)
