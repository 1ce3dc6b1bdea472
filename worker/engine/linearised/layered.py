"""An MLP or AllCNN linearised at its anchor, written out layer by layer, with bounds on its rounding.

Every layer is Z = W·P + b, where the columns P are the layer's inputs or their 3x3 patches. Columns are
feature-major, (features, rows·positions), so that a layer is one matrix product. Primes denote the derivative
along θ = w - a with the parts V and c of a layer:

    Z' = V·P + c + W·P',    A' = φ'(Z)∘Z',    z(w) = Z_L + Z'_L

P and φ'(Z) belong to the anchor, so they are constants of a row. With Â computed and A exact, and 2-norms
over one row:

    ‖Ẑ - Z‖    ≤ ‖W‖₂·‖P̂ - P‖ + γ·(‖W‖_F·‖P̂‖ + ‖b‖·√positions)
    ‖Ẑ' - Z'‖  ≤ ‖V‖₂·‖P̂ - P‖ + ‖W‖₂·‖P̂' - P'‖ + γ·(‖V‖_F·‖P̂‖ + ‖c‖·√positions + ‖W‖_F·‖P̂'‖)
    ‖Â' - A'‖  ≤ max|φ'|·‖Ẑ' - Z'‖ + ‖(φ̂' - φ')∘Ẑ'‖ + u·‖Â'‖
    ‖δ̂_Z-δ_Z‖ ≤ max|φ'|·‖δ̂_A - δ_A‖ + ‖(φ̂' - φ')∘δ̂_A‖ + u·‖δ̂_Z‖                          backwards

For a smooth activation, |φ̂' - φ'| ≤ max|φ''|·‖Ẑ - Z‖ + c·u·(1 + |Ẑ|). For ReLU the computed slope is the
exact one wherever |Ẑ| exceeds the bound on |Ẑ - Z|. Any other unit is *undecided*: its slope may be wrong by
1, and the bound above is the norm over the undecided units. In float64 there are usually none.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from worker.engine.networks import layers
from worker.engine.networks.architectures import Activation, AllCnn, Mlp
from worker.engine.networks.convolutional import add_patches, patches_of
from worker.engine.rounding import TINY, UNIT, gamma


@dataclass(frozen=True, slots=True)
class Matrix:
    """A layer's parameters, or a direction of them, with upper bounds on their norms."""

    weight: Tensor | None  # (out, k); None if it does not move
    bias: Tensor | None  # (out,)
    norm: float = 0.0  # ≥ ‖weight‖₂
    frobenius: float = 0.0
    bias_norm: float = 0.0

    @classmethod
    def of(cls, parts: Mapping[str, Tensor], name: str, *, bounded: bool) -> "Matrix":
        """Return the layer `name` of the parts. Norms are computed only if `bounded`."""
        weight, bias = parts.get(f"{name}.weight"), parts.get(f"{name}.bias")
        flat = None if weight is None else weight.flatten(1)
        if not bounded:
            return cls(flat, bias)
        bias_norm = 0.0 if bias is None else float(torch.linalg.vector_norm(bias)) * (1 + 1e-9)
        if flat is None:
            return cls(None, bias, bias_norm=bias_norm)
        frobenius = float(torch.linalg.matrix_norm(flat)) * (1 + 1e-9)
        norm = frobenius
        if math.isfinite(frobenius):
            norm = min(norm, float(torch.linalg.matrix_norm(flat.double(), 2)) * (1 + 1e-9))
        return cls(flat, bias, norm, frobenius, bias_norm)


@dataclass(frozen=True, slots=True)
class _Shape:
    """How a layer reads its input: 3x3 patches with a stride, the mean over positions, or as it is."""

    name: str
    stride: int = 0  # 0: dense
    pooled: bool = False

    @property
    def overlap(self) -> int:
        """Square root of the number of patches an entry can be in: how much patches can lengthen a row."""
        return -(-3 // self.stride) if self.stride else 1


@dataclass(frozen=True, slots=True)
class _State:
    """Constants of one layer on a chunk. n is rows times positions; errors are bounds for each row, (c,)."""

    columns: Tensor  # (k, n): P
    source: tuple[int, ...]  # shape of the layer's input
    image: tuple[int, ...]  # shape of its output
    z: Tensor  # (out, n)
    slope: Tensor | None  # (out, n): φ'(Z); None for the last layer
    columns_error: Tensor | None = None
    z_error: Tensor | None = None
    slope_error: Tensor | None = None  # (c,), for a smooth activation
    undecided: Tensor | None = None  # (out, n), for ReLU: units whose slope is not certain


@dataclass(frozen=True, slots=True)
class Pulled:
    """Jᵀ·q summed over a chunk, and for each row the bounds on its error and its size, (c,)."""

    gradient: Tensor  # (d,)
    evaluation: Tensor
    mass: Tensor


class LayeredNetwork:
    """An MLP or AllCNN at its anchor.

    `trained` names the parameters that move. Layers before the first of them are a constant function of a
    row; `prepare` computes it, and a network made with `prepared` expects its results as rows.
    """

    def __init__(
        self, spec: Mlp | AllCnn, anchor: Mapping[str, Tensor], trained: Sequence[str], *, prepared: bool
    ) -> None:
        self.spec, self.trained, self.prepared = spec, tuple(trained), prepared
        self.shapes = _layer_shapes(spec)
        moving = [any(name.startswith(f"{layer.name}.") for name in trained) for layer in self.shapes]
        self.start = moving.index(True)
        self._matrices = {
            dtype: [
                Matrix.of({name: part.to(dtype) for name, part in anchor.items()}, layer.name, bounded=True)
                for layer in self.shapes
            ]
            for dtype in (torch.float64, torch.float32)
        }

    @property
    def outputs(self) -> int:
        """Number of logits."""
        return self.spec.outputs

    @property
    def positions(self) -> int:
        """Largest number of columns a row has in any layer."""
        return max(math.prod(self._image_after(layer)) for layer in range(len(self.shapes)))

    @property
    def row_bytes(self) -> int:
        """Approximate float64 memory for one row: columns, logits and slopes of every layer."""
        size = self.spec.inputs
        for index, matrix in enumerate(self._matrices[torch.float64]):
            assert matrix.weight is not None
            out, width = matrix.weight.shape
            columns = 2 * width if self.shapes[index].stride else 0  # patches, and those of the tangent
            size += math.prod(self._image_after(index)) * (columns + 5 * out)
        return 8 * size

    def at(self, x: Tensor, *, bounded: bool = False) -> "LayeredTangent":
        """Linearise on a chunk of rows, in their dtype. With `bounded`, errors are tracked. (c, width)"""
        return LayeredTangent(self, x, bounded=bounded)

    def prepare(self, x: Tensor) -> Tensor:
        """Return the input of the first layer that moves, and last the bound on its error. (c, k + 1)"""
        states, a, error = _forward(self, self._raw(x), x.new_zeros(len(x)), range(self.start), bounded=True)
        del states
        shape = self.shapes[self.start]
        if shape.pooled:
            a, error = _pool(a, error)
        assert error is not None
        rows = a.transpose(0, 1).reshape(len(x), -1)
        return torch.cat([rows, error[:, None]], 1)

    def matrices(self, dtype: torch.dtype) -> list[Matrix]:
        """Return the layers at the anchor."""
        return self._matrices[dtype]

    def enter(self, x: Tensor) -> tuple[Tensor, Tensor, int]:
        """Return the feature-major input of a chunk, the bound on its error, and the first layer to run."""
        if not self.prepared or self.start == 0:
            return self._raw(x), x.new_zeros(len(x)), 0
        rows, error = x[:, :-1], x[:, -1]
        shape = self.shapes[self.start]
        if shape.stride:
            _, height, width = self._source_of(self.start)
            return rows.reshape(len(x), -1, height, width).transpose(0, 1), error, self.start
        return rows.T, error, self.start

    def _raw(self, x: Tensor) -> Tensor:
        if isinstance(self.spec, Mlp):
            return x.T
        return x.reshape(-1, *self.spec.image).transpose(0, 1)

    def _source_of(self, index: int) -> tuple[int, int, int]:
        """Return channels, height and width of the input of an AllCNN's layer."""
        assert isinstance(self.spec, AllCnn)
        channels, height, width = self.spec.image
        for after, stride in self.spec.channels[:index]:
            channels, height, width = after, -(-height // stride), -(-width // stride)
        return channels, height, width

    def _image_after(self, index: int) -> tuple[int, ...]:
        if not self.shapes[index].stride:
            return ()
        return self._source_of(index + 1)[1:]


class LayeredTangent:
    """The affine map w ↦ z on one chunk: `base` plus `push`, and its transpose `pull`."""

    def __init__(self, network: LayeredNetwork, x: Tensor, *, bounded: bool) -> None:
        self._network, self._bounded, self._rows = network, bounded, len(x)
        self._matrices = network.matrices(x.dtype)
        a, error, first = network.enter(x)
        rest = range(first, len(network.shapes))
        states, z, z_error = _forward(network, a, error if bounded else None, rest, bounded=bounded)
        self._states = dict(zip(rest, states, strict=True))
        self.base = z.T  # (c, outputs): N(x; a)
        self._base_error = z_error

    def push(self, parts: Mapping[str, Tensor]) -> Tensor:
        """Return ∂N(x; a)·θ for a direction given by parameter name. -> (c, outputs)"""
        return self._push(parts)[0].T

    def push_bounded(self, parts: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return the logits N(x; a) + ∂N(x; a)·θ and a bound on their error. -> (c, outputs), (c,)"""
        assert self._bounded
        z, error = self._push(parts)
        assert error is not None
        assert self._base_error is not None
        total = self.base + z.T
        return total, error + self._base_error + UNIT * torch.linalg.vector_norm(total, dim=1)

    def pull(self, q: Tensor) -> Tensor:
        """Return Σ_i ∂N(x_i; a)ᵀ·q_i over the moving parameters. (c, outputs) -> (d,)"""
        return self._pull(q, None).gradient

    def pull_bounded(self, q: Tensor, error: Tensor) -> Pulled:
        """Return `pull` and its bounds, for q known to within `error` (c,)."""
        assert self._bounded
        return self._pull(q, error)

    def factors(self, q: Tensor) -> dict[str, tuple[Tensor, Tensor, int]]:
        """Return each moving layer's columns (k, n), the δ (out, n) of q, and its positions."""
        found: dict[str, tuple[Tensor, Tensor, int]] = {}
        for index, state, delta, _ in self._backwards(q, None):
            if self._moves(index):
                positions = math.prod(state.image[2:])
                found[self._network.shapes[index].name] = state.columns, delta, positions
        return found

    # -- internals ----------------------------------------------------------------------------------

    def _moves(self, index: int) -> bool:
        name = self._network.shapes[index].name
        return any(trained.startswith(f"{name}.") for trained in self._network.trained)

    def _push(self, parts: Mapping[str, Tensor]) -> tuple[Tensor, Tensor | None]:
        network = self._network
        lead: Tensor | None = None  # A' of the layer below
        lead_error: Tensor | None = None
        z, error = torch.zeros_like(self.base.T), None
        for index in range(network.start, len(network.shapes)):
            shape, state, matrix = network.shapes[index], self._states[index], self._matrices[index]
            along = Matrix.of(parts, shape.name, bounded=self._bounded)
            columns: Tensor | None = None
            if lead is not None:
                columns, _, lead_error = _enter_layer(shape, lead, lead_error)
            z = _affine(along, state.columns, matrix, columns, state.z)
            error = self._push_error(state, along, matrix, columns, lead_error)
            if state.slope is not None:
                lead = (state.slope * z).view(state.image)
                lead_error = self._through(state, z, error, state.slope * z)
        return z, error

    def _push_error(
        self, state: _State, along: Matrix, matrix: Matrix, columns: Tensor | None, lead_error: Tensor | None
    ) -> Tensor | None:
        if not self._bounded:
            return None
        assert state.columns_error is not None
        positions = math.sqrt(math.prod(state.image[2:]))
        size = _norms(state.columns, self._rows)
        factor = gamma(len(state.columns) + 5)
        error = along.norm * state.columns_error + factor * (
            along.frobenius * size + along.bias_norm * positions
        )
        if columns is not None:
            assert lead_error is not None
            error = error + matrix.norm * lead_error
            error = error + factor * matrix.frobenius * _norms(columns, self._rows)
        return error + TINY * math.sqrt(state.z.numel() / self._rows)

    def _through(self, state: _State, vector: Tensor, error: Tensor | None, product: Tensor) -> Tensor | None:
        """Bound the error of φ'(Z)∘vector for a vector known to within `error` (c,)."""
        if error is None:
            return None
        largest = layers.LARGEST_SLOPE[self._network.spec.activation]
        error = largest * error + UNIT * _norms(product, self._rows)
        if state.slope_error is not None:
            return error + state.slope_error * (_norms(vector, self._rows) + error)
        if state.undecided is not None:
            return error + _norms(vector * state.undecided, self._rows)
        return error

    def _pull(self, q: Tensor, error: Tensor | None) -> Pulled:
        pieces: dict[str, Tensor] = {}
        evaluation = mass = q.new_zeros(self._rows)
        for index, state, delta, delta_error in self._backwards(q, error):
            name = self._network.shapes[index].name
            if not self._moves(index):
                continue
            pieces[f"{name}.weight"] = (delta @ state.columns.T).reshape(-1)
            pieces[f"{name}.bias"] = delta.sum(1)
            if delta_error is None:
                continue
            assert state.columns_error is not None
            size = _norms(delta, self._rows)
            positions = size.new_tensor(math.sqrt(math.prod(state.image[2:])))
            reach = torch.hypot(_norms(state.columns, self._rows), positions)  # ‖(P, 1)‖
            share = delta_error * reach + (size + delta_error) * state.columns_error
            evaluation, mass = torch.hypot(evaluation, share), torch.hypot(mass, size * reach)
        gradient = torch.cat([pieces[name] for name in self._network.trained])
        return Pulled(gradient.to(torch.float64), evaluation, mass)

    def _backwards(
        self, q: Tensor, error: Tensor | None
    ) -> "list[tuple[int, _State, Tensor, Tensor | None]]":
        """Return δ = ∂(q·z)/∂Z of each layer from the last to the first that moves, with its error."""
        network, steps = self._network, []
        delta = q.T
        for index in range(len(network.shapes) - 1, network.start - 1, -1):
            shape, state, matrix = network.shapes[index], self._states[index], self._matrices[index]
            steps.append((index, state, delta, error))
            if index == network.start:
                break
            assert matrix.weight is not None
            back = matrix.weight.T @ delta
            if error is not None:
                size = matrix.frobenius * _norms(delta, self._rows)
                error = matrix.norm * error + gamma(len(delta) + 2) * size
            back, error = _leave_layer(shape, back, state.source, error, self._rows)
            below = self._states[index - 1]
            assert below.slope is not None
            delta = back * below.slope
            error = self._through(below, back, error, delta)
        return steps


def _layer_shapes(spec: Mlp | AllCnn) -> list[_Shape]:
    if isinstance(spec, Mlp):
        return [_Shape(f"layers.{i}") for i in range(len(spec.widths) - 1)]
    convolutions = [_Shape(f"layers.{i}", stride) for i, (_, stride) in enumerate(spec.channels)]
    # The last layer and the mean after it are swapped, which leaves a dense layer on the mean.
    return [*convolutions, _Shape("head", pooled=True)]


def _forward(
    network: LayeredNetwork, a: Tensor, error: Tensor | None, indices: range, *, bounded: bool
) -> tuple[list[_State], Tensor, Tensor | None]:
    """Run these layers at the anchor. Returns their states, the last output and the bound on its error."""
    activation, matrices = network.spec.activation, network.matrices(a.dtype)
    rows, last = a.shape[1], len(network.shapes) - 1
    states: list[_State] = []
    for index in indices:
        shape, matrix = network.shapes[index], matrices[index]
        source = tuple(a.shape)
        if shape.pooled and a.dim() == 2:  # prepared rows hold the mean already
            columns, placed = a, tuple[int, ...]((rows,))
        else:
            columns, placed, error = _enter_layer(shape, a, error)
        assert matrix.weight is not None
        assert matrix.bias is not None
        z = torch.addmm(matrix.bias[:, None], matrix.weight, columns)
        image = (len(z), *placed)
        z_error = None
        if bounded:
            assert error is not None
            size = matrix.frobenius * _norms(columns, rows)
            bias = matrix.bias_norm * math.sqrt(math.prod(image[2:]))
            z_error = matrix.norm * error + gamma(len(columns) + 2) * (size + bias)
            z_error = z_error + TINY * math.sqrt(z.numel() / rows)
        if index == last:
            states.append(_State(columns, source, image, z, None, error, z_error))
            return states, z, z_error
        slope = layers.slope(activation, z)
        states.append(
            _State(columns, source, image, z, slope, error, z_error, *_doubts(activation, z, z_error, rows))
        )
        a, error = layers.value(activation, z).view(image), _activated(activation, z, z_error, rows)
    return states, a, error


def _doubts(
    activation: Activation, z: Tensor, z_error: Tensor | None, rows: int
) -> tuple[Tensor | None, Tensor | None]:
    """Return the bound on the slope's error for each row, or for ReLU the units whose slope is undecided."""
    if z_error is None:
        return None, None
    if activation != "relu":
        highest = z.view(len(z), rows, -1).abs().amax((0, 2))
        bend = layers.LARGEST_BEND[activation] * z_error
        return bend + layers.ACTIVATION_UNITS * UNIT * (1 + highest), None
    near = z.view(len(z), rows, -1).abs() <= z_error[:, None]
    return None, near.view_as(z) if bool(near.any()) else None


def _activated(activation: Activation, z: Tensor, z_error: Tensor | None, rows: int) -> Tensor | None:
    """Bound the error of φ(Z). ReLU is exact and does not lengthen a difference."""
    if z_error is None or activation == "relu":
        return z_error
    size = math.sqrt(z.numel() / rows)
    rounding = layers.ACTIVATION_UNITS * UNIT * (_norms(z, rows) + size) + TINY * size
    return layers.LARGEST_SLOPE[activation] * z_error + rounding


def _affine(
    along: Matrix, columns: Tensor, matrix: Matrix, lead: Tensor | None, like: Tensor
) -> Tensor:  # V·P + c + W·P'
    z = torch.zeros_like(like) if along.weight is None else along.weight @ columns
    if along.bias is not None:
        z = z.add_(along.bias[:, None])
    if lead is not None:
        assert matrix.weight is not None
        z = z.addmm_(matrix.weight, lead)
    return z


def _enter_layer(
    shape: _Shape, a: Tensor, error: Tensor | None
) -> tuple[Tensor, tuple[int, ...], Tensor | None]:
    """Return the columns of a layer's input, rows and size of its output, and the bound on their error."""
    if shape.stride:
        columns, image = patches_of(a, shape.stride)
        return columns, image, None if error is None else shape.overlap * error
    if shape.pooled:
        mean, error = _pool(a, error)
        return mean, (a.shape[1],), error
    return a, (a.shape[1],), error


def _pool(a: Tensor, error: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Return the mean over positions and the bound on its error. -> (channels, rows)"""
    positions = a.shape[2] * a.shape[3]
    mean = a.mean((2, 3))
    if error is None:
        return mean, None
    size = _norms(a.flatten(2).reshape(len(a), -1), a.shape[1])
    return mean, (error + gamma(positions + 2) * size) / math.sqrt(positions)


def _leave_layer(
    shape: _Shape, back: Tensor, source: tuple[int, ...], error: Tensor | None, rows: int
) -> tuple[Tensor, Tensor | None]:
    """Apply the transpose of `_enter_layer`. Returns δ_A in the shape of the Z below, and its error."""
    if shape.stride:
        if error is not None:
            error = shape.overlap * (error + gamma(9) * _norms(back, rows))
        return add_patches(back, source, shape.stride), error
    if shape.pooled:
        positions = source[2] * source[3]
        spread = (back / positions)[:, :, None].expand(-1, -1, positions).reshape(len(back), -1)
        if error is not None:
            error = (error + 2 * UNIT * _norms(back, rows)) / math.sqrt(positions)
        return spread, error
    return back, error


def _norms(columns: Tensor, rows: int) -> Tensor:
    """Return the 2-norm of each row. (k, rows·positions) -> (rows,)"""
    lengths: Tensor = columns.reshape(len(columns), rows, -1).square().sum((0, 2)).sqrt()
    return lengths + TINY * math.sqrt(columns.numel() / rows)
