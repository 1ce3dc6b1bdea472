"""PyTorch: registers the linear head of a module as a model, and loads the certified head back into it.

    from lethe.integrations.torch import load, register

    register(client, "digits", module, rows, labels, subjects, lam=1e-3, origin="trained on …", licence="MIT")
    ...                              # people are erased
    load(client, "digits", module)   # module has the certified head

The module is a frozen backbone that ends in one `nn.Linear`. The backbone goes to the service as an ONNX
graph, and the service computes the features and trains the head. Nothing is computed from training rows here.

A whole network is registered with `register_network`, linearised at its present weights. `load` then returns
a `Linearised` module.
"""

import json
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from lethe.certificate.keys import KeySet
from lethe.client.responses import Model
from lethe.integrations.errors import BadTable, CannotRebuild, require_libraries
from lethe.integrations.modules import (
    INPUT,
    OUTPUT,
    Head,
    check_structure,
    compute_features,
    digest_backbone,
    export_backbone,
    find_head,
    to_safetensors,
)
from lethe.integrations.networks import NETWORK_ANNOTATION, linearised, load_network, register_network
from lethe.integrations.noise_effect import (
    HOLDOUT,
    NoiseTooLarge,
    PublicRows,
    declared_rows,
    rows_like,
    warn_about_noise,
)
from lethe.integrations.registration import register_files
from lethe.integrations.released_weights import ReleasedWeights, fetch_weights
from lethe.integrations.tables import as_array, split_holdout, write_parquet

if TYPE_CHECKING:
    from lethe.client.api import Lethe

__all__ = ["INPUT", "OUTPUT", "Linearised", "NoiseTooLarge", "load", "register", "register_network"]
Linearised = linearised
ANNOTATION = "torch"
_PURPOSE = "The integration with PyTorch"
_MADE_UP_ROWS = 64
_PIXEL_SETTINGS = frozenset({"scale", "mean", "std"})


def register(
    client: "Lethe",
    name: str,
    module: Any,
    rows: Any,
    labels: Any,
    subjects: Any,
    *,
    lam: float,
    origin: str,
    licence: str,
    head: str | None = None,
    holdout: tuple[Any, ...] | None = None,
    classes: Sequence[Hashable] | None = None,
    pixels: Mapping[str, Any] | None = None,
    anchor: str | None = None,
    row_length: float | None = None,
    policy: Mapping[str, Any] | None = None,
    origins: Mapping[str, str] | None = None,
    wait: bool = True,
    timeout: float | None = None,
) -> Model:
    """Register the head of a module as the model `name`. The backbone becomes its representation.

    `rows` are the module's inputs, as a tensor or an array with one row per person's record: floats of any
    shape, or images as bytes (uint8) of the shape (rows, channels, height, width). The module gets an image
    as (pixel·scale - mean)/std, where `pixels` holds these constants; by default the scale is 1/255.
    `subjects` says for each row whose it is. `holdout` is a tuple of further rows and labels for evaluation,
    optionally with their subjects.

    The head is the last `nn.Linear`, or the one that `head` names. It has one output per class, and labels
    are 0, 1, … or names from `classes`. With one output, whole labels 0 and 1 make a logistic regression, and
    real labels a ridge regression.

    `lam` is λ in mean loss + (λ/2)·‖head‖², which includes the bias: the weight decay of the head. `origin`
    says where the backbone comes from and what it was trained on, and `licence` names its licence. Both are
    printed on certificates. If the present weights of the head were trained on public data too, say where
    they come from in `anchor`. λ then penalises the distance from them.

    Raise `CannotCertify` if the backbone is not frozen, or if the module does not end in its head. Warn with
    `NoiseTooLarge` if the noise of a release will probably spoil a classifier. This is judged by λ, by the
    policy, and by the length of the features that the backbone computes: `row_length` if you know it without
    looking at rows that can be erased, or else its length on a holdout without subjects or on made-up rows.
    """
    require_libraries(_PURPOSE, "torch", "onnx", "pyarrow", "numpy")
    found = find_head(module, head)
    inputs = _Inputs.of(rows, pixels)
    check_structure(module, found, inputs.shape)
    graph = export_backbone(module, found, inputs.shape, flat=inputs.kind == "vector")
    family, known = _family(found, labels, classes)
    manifest = _manifest(module, found, family, inputs, lam, anchor, classes)
    manifest["representation"] |= {"origin": origin, "licence": licence}
    manifest["origins"] |= origins or {}
    manifest["policy"] = dict(policy or {})
    with TemporaryDirectory(prefix="lethe-") as folder:
        data = inputs.write(Path(folder) / "data", labels, subjects, known)
        held = None if holdout is None else _write_holdout(Path(folder), inputs, holdout, known, pixels)
        warn_about_noise(manifest, _public_rows(module, found, inputs, holdout, pixels, row_length))
        return register_files(
            client,
            name,
            manifest,
            data=data,
            holdout=held,
            representation=graph,
            anchor=None if anchor is None else _head_file(found),
            wait=wait,
            timeout=timeout,
        )


def load(
    client: "Lethe",
    name: str,
    module: Any,
    *,
    version: int | None = None,
    keys: KeySet | bytes | None = None,
    certified: bool = True,
) -> Any:
    """Put the certified head of the model `name` into a module, and return the module.

    For a whole network, return a new module that is linearised at the weights of `module`, its anchor.

    The certificate and the weights are verified first. Pass the issuer's `keys` if you have them from another
    source. Without them, the keys that come with the certificate are used. The parameters and buffers of the
    backbone must be those that were registered, or `CannotRebuild` is raised and the module stays as it was.

    Weights are rounded to the head's own float type. The module stays in the mode it is in, so call
    `module.eval()` before you use it. `version` chooses an earlier version. Version 0, the model as
    registered, has no certificate. To load it, pass `certified=False`.
    """
    require_libraries(_PURPOSE, "torch", "numpy")
    released = fetch_weights(client, name, version=version, keys=keys, certified=certified)
    if NETWORK_ANNOTATION in released.model.manifest.annotations:
        return load_network(released, name, module)
    head = _registered_head(released, name, module)
    _fill(head, released)
    return module


# -- registration -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Inputs:
    """Raw rows: images as bytes, or floats that are stored as vectors."""

    rows: Any
    kind: str
    shape: tuple[int, ...]
    declaration: dict[str, Any]

    @classmethod
    def of(cls, rows: Any, pixels: Mapping[str, Any] | None) -> "_Inputs":
        import numpy as np

        array = as_array(rows)
        shape = tuple(int(side) for side in array.shape[1:])
        if array.dtype == np.uint8 and array.ndim == 4:
            if unknown := set(pixels or {}) - _PIXEL_SETTINGS:
                raise BadTable(f"pixels: there is no setting {min(unknown)}. Use scale, mean and std")
            declared = {"kind": "image", "encoding": "uint8", "resize": "none", "shape": list(shape)}
            return cls(array, "image", shape, {"input": declared | dict(pixels or {})})
        if pixels is not None:
            raise BadTable("pixels: only images of bytes (uint8) with four dimensions have pixel constants")
        if array.dtype.kind != "f" or array.ndim < 2:
            raise BadTable(
                f"rows: a {array.ndim}-dimensional array of {array.dtype} cannot be stored. Pass floats with "
                "one row per record, or images as uint8 of the shape (rows, channels, height, width)"
            )
        width = int(np.prod(shape))
        return cls(array, "vector", shape, {"input": {"kind": "vector", "width": width}})

    def made_up(self) -> Any:
        """Return made-up rows as the module gets them: random pixels, or floats between 0 and 1."""
        import numpy as np

        random = np.random.default_rng(0)
        if self.kind == "image":
            return replace(self, rows=random.integers(0, 256, (_MADE_UP_ROWS, *self.shape))).as_module_gets()
        return random.random((_MADE_UP_ROWS, *self.shape))

    def as_module_gets(self) -> Any:
        """Return the rows as the module gets them, with the constants of pixels applied."""
        import numpy as np

        if self.kind == "vector":
            return self.rows
        declared = self.declaration["input"]
        mean, std = (
            np.asarray(declared.get(name, default), float).reshape(-1, 1, 1)
            for name, default in (("mean", 0.0), ("std", 1.0))
        )
        return (self.rows * declared.get("scale", 1 / 255) - mean) / std

    def write(self, to: Path, labels: Any, subjects: Any, classes: Sequence[Hashable] | None) -> Path:
        """Write the rows as Parquet."""
        import numpy as np

        given = as_array(labels)
        source: Any = self.rows.reshape(len(self.rows), -1)
        if self.kind == "image":
            by_pixel = np.ascontiguousarray(self.rows.transpose(0, 2, 3, 1))
            source = {"image": [image.tobytes() for image in by_pixel]}
        features = "image" if self.kind == "image" else "features"
        return write_parquet(
            source, to, subject=subjects, label=given, features=features, classes=classes
        ).path


def _manifest(
    module: Any,
    head: Head,
    family: str,
    inputs: _Inputs,
    lam: float,
    anchor: str | None,
    classes: Sequence[Hashable] | None,
) -> dict[str, Any]:
    """Return what follows from the module, its head and its rows."""
    public = {} if anchor is None else {"anchor": anchor}
    manifest = {
        "family": family,
        "width": head.layer.in_features,
        "lambda": lam,
        "bias": head.has_bias,
        "representation": inputs.declaration | {"outputs": [OUTPUT]},
        "origins": {"features": "the representation's features", "constants": "set by the owner"} | public,
        "annotations": {ANNOTATION: json.dumps(_describe(module, head, classes))},
    }
    if family == "softmax":
        manifest["classes"] = head.layer.out_features
    return manifest


def _write_holdout(
    folder: Path,
    inputs: _Inputs,
    holdout: tuple[Any, ...],
    classes: Sequence[Hashable] | None,
    pixels: Mapping[str, Any] | None,
) -> Path:
    rows, labels, subjects = split_holdout(holdout)
    held = _Inputs.of(rows, pixels)
    if (held.kind, held.shape) != (inputs.kind, inputs.shape):
        raise BadTable(
            f"holdout: its rows have the shape {held.shape}, but training rows have {inputs.shape}"
        )
    try:
        return held.write(folder / "holdout", labels, subjects, classes)
    except BadTable as problem:
        raise BadTable(f"holdout: {problem}") from None


def _public_rows(
    module: Any,
    head: Head,
    inputs: _Inputs,
    holdout: tuple[Any, ...] | None,
    pixels: Mapping[str, Any] | None,
    row_length: float | None,
) -> PublicRows:
    """Return how long the backbone's features are, on rows without subjects."""
    if row_length is not None:
        return declared_rows(row_length)
    if holdout is None or (len(holdout) == 3 and holdout[2] is not None):
        return rows_like(compute_features(module, head, inputs.made_up()), "made-up rows")
    some = _Inputs.of(holdout[0][:_MADE_UP_ROWS], pixels)
    return rows_like(compute_features(module, head, some.as_module_gets()), HOLDOUT)


def _family(
    head: Head, labels: Any, classes: Sequence[Hashable] | None
) -> tuple[str, Sequence[Hashable] | None]:
    """Return the family of the head's loss, and the classes to look labels up in."""

    outputs = head.layer.out_features
    expected = max(outputs, 2)
    if classes is not None and len(classes) != expected:
        raise BadTable(f"classes: the head {head.name} has {outputs} outputs, so list {expected} classes")
    if outputs > 1:
        return "softmax", classes or range(outputs)
    array = as_array(labels)
    if classes is None and array.dtype.kind == "f":
        return "ridge", None
    return "logistic", classes or range(2)


def _describe(module: Any, head: Head, classes: Sequence[Hashable] | None) -> dict[str, Any]:
    listed = None if classes is None else [str(entry) for entry in classes]
    return {"head": head.name, "backbone_sha256": digest_backbone(module, head), "classes": listed}


def _head_file(head: Head) -> bytes:
    return to_safetensors(dict(head.layer.named_parameters()))


# -- loading ------------------------------------------------------------------------------------------------


def _registered_head(released: ReleasedWeights, name: str, module: Any) -> Head:
    """Return the module's head after checking that the module is the registered one."""
    from torch import nn

    text = released.model.manifest.annotations.get(ANNOTATION)
    if text is None:
        raise CannotRebuild(f"{name} was not registered from PyTorch, so there is no head to load")
    described, kind = json.loads(text), type(module).__name__
    layer = dict(module.named_modules()).get(described["head"])
    if not isinstance(layer, nn.Linear):
        raise CannotRebuild(
            f"{kind} has no nn.Linear named {described['head']}, which was registered as head"
        )
    head = Head(described["head"], layer)
    shapes = {tensor: tuple(value.shape) for tensor, value in layer.named_parameters()}
    expected = {tensor: value.shape for tensor, value in released.tensors.items()}
    if shapes != expected:
        raise CannotRebuild(f"the head {head.name} has the shapes {shapes}, but the model has {expected}")
    if digest_backbone(module, head) != described["backbone_sha256"]:
        raise CannotRebuild(
            f"the backbone of {kind} is not the one that was registered: a parameter or buffer outside "
            f"{head.name} differs. Load the original backbone first"
        )
    return head


def _fill(head: Head, released: ReleasedWeights) -> None:
    import torch

    state = {name: torch.from_numpy(released.array(name).copy()) for name in released.tensors}
    head.layer.load_state_dict(state)
