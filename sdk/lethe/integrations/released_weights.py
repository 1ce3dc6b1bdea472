"""Released weights: downloads a version of a model and verifies its certificate before anything is used."""

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from lethe.certificate.keys import KeySet
from lethe.certificate.statement import AnyPredicate
from lethe.certificate.verify import verify
from lethe.certificate.weights_file import Tensor, read_tensors
from lethe.client.errors import ReleaseUnavailable
from lethe.client.releases import find_release, require_verified
from lethe.client.responses import Model, Version

if TYPE_CHECKING:
    from lethe.client.api import Lethe

_DTYPES = {"F32": "<f4", "F64": "<f8"}


@dataclass(frozen=True)
class ReleasedWeights:
    """The weights of one version. `predicate` is what its certificate states, or None for version 0."""

    model: Model
    version: Version
    predicate: AnyPredicate | None
    tensors: dict[str, Tensor]

    def array(self, name: str) -> Any:
        """Return a tensor as a NumPy array of its own float type."""
        import numpy as np

        tensor = self.tensors[name]
        return np.frombuffer(tensor.data, _DTYPES[tensor.dtype]).reshape(tensor.shape)


def fetch_weights(
    client: "Lethe",
    name: str,
    *,
    version: int | None = None,
    keys: KeySet | bytes | None = None,
    certified: bool = True,
) -> ReleasedWeights:
    """Download a version of a model, the current one by default, and verify its certificate.

    With `keys`, the certificate must be signed by these keys of the issuer. Without them, the keys that come
    with the certificate are used. Version 0 has no certificate, and is refused unless `certified` is false.

    Raise `ReleaseUnavailable` if there is no such version, and `NotVerified` if the certificate or the file
    does not verify.
    """
    model, chosen = client.models.get(name), _find_version(client, name, version)
    if chosen.certificate_id is None and certified:
        raise ReleaseUnavailable(
            f"version {chosen.number} of {name} has no certificate: it is the model as registered, without "
            "noise. A certified version is published after the first erasure. To load this one, pass "
            "certified=False"
        )
    with TemporaryDirectory(prefix="lethe-") as folder:
        file = client.versions.download(name, Path(folder) / "weights", version=chosen.number)
        weights = file.read_bytes()
    predicate = None
    if chosen.certificate_id is not None:
        release = find_release(client, name, chosen.number)
        subject = f"version {chosen.number} of {name}"
        require_verified(verify(release.pack, weights=weights, keys=keys), subject)
        predicate = release.predicate
    return ReleasedWeights(model, chosen, predicate, read_tensors(weights)[1])


def _find_version(client: "Lethe", name: str, number: int | None) -> Version:
    for version in client.versions.list(name):
        if version.number == number or (number is None and version.state == "current"):
            return version
    which = "published version" if number is None else f"version {number}"
    raise ReleaseUnavailable(f"{name} has no {which}. To list its versions, run: lethe model show {name}")
