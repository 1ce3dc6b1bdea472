"""Input checks of the engine. Each raises EngineInputError with the reason."""

import math

import torch
from torch import Tensor

from worker.engine.rows import Rows


class EngineInputError(ValueError):
    """The problem as stated has no meaningful answer."""


def check_rows(rows: Rows) -> None:
    """Require at least one row with at least one feature."""
    if rows.count < 1:
        raise EngineInputError("no rows are left: there is nothing to fit")
    if rows.width < 1:
        raise EngineInputError("rows have no features")


def check_lambda(lam: float) -> None:
    """Require a finite positive λ. It is the curvature floor that every proof rests on."""
    if not (math.isfinite(lam) and lam > 0):
        raise EngineInputError(f"lambda must be finite and positive, got {lam!r}")


def check_classes(classes: int) -> None:
    """Require at least two classes."""
    if classes < 2:
        raise EngineInputError(f"a softmax needs at least two classes, got {classes}")


def check_target(target: float) -> None:
    """Require a finite positive target distance."""
    if not (math.isfinite(target) and target > 0):
        raise EngineInputError(f"the target distance must be finite and positive, got {target!r}")


def check_floor(proven: float, working: float | None) -> float:
    """Return the proven floor if it is positive, or else the working floor that the caller must supply."""
    if proven > 0:
        return proven
    if working is None or not (math.isfinite(working) and working > 0):
        raise EngineInputError(
            f"no curvature floor is proven: a positive working floor is needed, got {working!r}"
        )
    return working


def checked_point(point: Tensor | None, dimension: int, name: str) -> Tensor:
    """Return a finite float64 copy of `point` (dimension,), or zeros for None.

    Never shares the caller's memory.
    """
    if point is None:
        return torch.zeros(dimension, dtype=torch.float64)
    if tuple(point.shape) != (dimension,):
        raise EngineInputError(f"{name} must have shape ({dimension},), got {tuple(point.shape)}")
    if not bool(torch.isfinite(point).all()):
        raise EngineInputError(f"{name} holds NaN or infinity")
    return point.detach().to(torch.float64, copy=True)


def check_labels(y: Tensor, classes: int, first: int) -> None:
    """Require whole labels in 0 … classes-1 in the chunk that starts at row `first`.

    A class may have no rows.
    """
    fractional = (y != y.trunc()) if y.is_floating_point() else torch.zeros_like(y, dtype=torch.bool)
    wrong = (y < 0) | (y >= classes) | fractional
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0])
        raise EngineInputError(f"label {y[row].item()!r} of row {first + row} is not in 0 … {classes - 1}")


def check_real(y: Tensor, first: int) -> None:
    """Require finite targets in the chunk that starts at row `first`."""
    wrong = ~torch.isfinite(y)
    if bool(wrong.any()):
        raise EngineInputError(f"the target of row {first + int(wrong.nonzero()[0])} is NaN or infinite")


def check_type(x: Tensor) -> None:
    """Require a feature dtype whose values float64 represents exactly."""
    if x.dtype not in (torch.float32, torch.float64):
        raise EngineInputError(f"features must be float32 or float64, got {x.dtype}")


def check_features(x: Tensor, first: int) -> None:
    """Require finite features in the chunk that starts at row `first`."""
    finite = torch.isfinite(x)
    if not bool(finite.all()):
        row = int((~finite).any(1).nonzero()[0])
        raise EngineInputError(f"row {first + row} holds a feature that is NaN or infinite")
