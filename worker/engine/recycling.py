"""Repeated solves with one sampled Hessian, where each solve reuses the directions of those before it.

Between a published version and the next minimiser, the Hessian hardly changes. So one sample of rows can
precondition every step there: the gradient over all rows says where to go, the sample turns it into a step,
and the secants (`worker.engine.secants`) correct what the sample gets wrong. A step then costs one gradient
and a few products with a small share of the rows.

The solves are conjugate gradients. Their directions are conjugate with respect to the sampled Hessian, and
stay so when the right-hand side changes. A new solve first moves to the best point in the span of all earlier
directions, which costs no product, and keeps its new directions conjugate to them (deflated conjugate
gradients, Saad, Yeung, Erhel & Guyomarc'h 2000).
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from worker.engine.subproblem import Quadratic

_MOST_BYTES = 256 * 2**20  # for the directions and their images
_MOST_DIRECTIONS = 200


class RecycledSolves:
    """Approximate solutions of H·x = r with a sampled H, and the fraction of a pass that they have cost."""

    def __init__(
        self,
        product: Callable[[Tensor], Tensor],
        inverse: Callable[[Tensor], Tensor] | None,
        *,
        fraction: float,
        forcing: float,
        least: float,
        limit: int,
        share: float = 1.0,
    ) -> None:
        """Solve to a residual of `forcing` relative to r, but not below `least`, in `limit` products.

        A product touches this `fraction` of the rows. One that is not finite ends a solve.
        `share` shortens the solutions. The inverse of a sampled Hessian is too large on average.
        """
        self._product, self._inverse, self._fraction = product, inverse, fraction
        self._forcing, self._least, self._limit, self._share = forcing, least, limit, share
        self._directions: Tensor | None = None  # (k, d), and their images under H
        self._images: Tensor | None = None
        self._curvatures: list[float] = []  # dᵀHd of each direction
        self.products = 0

    @property
    def passes(self) -> float:
        """What the products have cost so far."""
        return self.products * self._fraction

    def solve(self, g: Tensor, lam: float) -> Tensor:  # noqa: ARG002
        """Return an approximation of H⁻¹·g. (d,) -> (d,)"""
        x, r = self._project(torch.zeros_like(g), g)
        goal = max(self._forcing * _norm(g), self._least)
        quadratic = Quadratic(g, self._product, self._inverse)
        for _ in range(self._limit):
            if not _norm(r) > goal:
                break
            direction = self._conjugate(quadratic.precondition(r)[0])
            image = self._product(direction)
            self.products += 1
            curvature = float(direction @ image)
            alpha = float(direction @ r) / curvature if curvature > 0 else math.nan
            if not math.isfinite(alpha):
                break
            x, r = x + alpha * direction, r - alpha * image
            self._keep(direction, image, curvature)
        return self._share * x

    def _project(self, x: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
        """Move to the best point in the span of the kept directions. Returns the point and its residual."""
        known = len(self._curvatures)
        if self._directions is None or self._images is None or known == 0:
            return x, r
        shares = (self._directions[:known] @ r) / r.new_tensor(self._curvatures)
        return x + shares @ self._directions[:known], r - shares @ self._images[:known]

    def _conjugate(self, z: Tensor) -> Tensor:
        """Subtract from z its part along the kept directions, in the inner product of H."""
        known = len(self._curvatures)
        if self._directions is None or self._images is None or known == 0:
            return z
        shares = (self._images[:known] @ z) / z.new_tensor(self._curvatures)
        return z - shares @ self._directions[:known]

    def _keep(self, direction: Tensor, image: Tensor, curvature: float) -> None:
        """Keep a direction. When there is no room left, the older half is forgotten."""
        if self._directions is None or self._images is None:
            room = max(2, min(_MOST_DIRECTIONS, _MOST_BYTES // (2 * direction.nbytes)))
            self._directions, self._images = (direction.new_empty(room, len(direction)) for _ in range(2))
        known, room = len(self._curvatures), len(self._directions)
        if known == room:
            known = room // 2
            for kept in (self._directions, self._images):
                kept[:known] = kept[room - known :].clone()
            self._curvatures = self._curvatures[room - known :]
        self._directions[known], self._images[known] = direction, image
        self._curvatures.append(curvature)


def _norm(v: Tensor) -> float:
    return float(torch.linalg.vector_norm(v))
