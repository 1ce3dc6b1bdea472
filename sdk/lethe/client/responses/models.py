"""Models: manifest, policy, files, versions and the privacy budget."""

from datetime import datetime
from typing import Any
from uuid import UUID

from pydantic import Field

from lethe.client.responses.base import Response


class Origins(Response):
    """Where the parts of a model's objective come from, as its owner declared it."""

    features: str
    constants: str
    anchor: str = "zero"
    standardisation: str | None = None


class Network(Response):
    """The shape of a neural network, and which of its layers are trained if it is linearised."""

    linearised: bool = False
    layers: tuple[str, ...] | None = None
    activation: str = "gelu"
    hidden: tuple[int, ...] | None = None
    image: tuple[int, int, int] | None = None
    channels: tuple[tuple[int, int], ...] | None = None
    base_width: int | None = None
    groups: int | None = None


class VectorInput(Response):
    """Raw rows that are vectors of `width` numbers, in the column `features`."""

    kind: str
    width: int


class ImageInput(Response):
    """Raw rows that are images, in the column `image`; `shape` is channels, height and width."""

    kind: str
    encoding: str = "png or jpeg"
    shape: tuple[int, int, int]
    resize: str = "bilinear"
    scale: float = 1 / 255
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()


class TextInput(Response):
    """Raw rows that are texts of at most `max_length` tokens, in the column `text`."""

    kind: str
    max_length: int


class Representation(Response):
    """The public function that turns raw rows into features, as its owner declared it."""

    input: VectorInput | ImageInput | TextInput
    outputs: tuple[str, ...]
    normalisation: str = "none"
    origin: str
    licence: str
    library: str | None = None


class QualityGate(Response):
    """The holdout scores below which a new version is held for a decision."""

    min_f1: float | None = None
    max_loss: float | None = None
    max_f1_drop: float | None = None
    max_loss_rise: float | None = None


class BaselineSettings(Response):
    """The constants of the baseline methods `tr-paper`, `guo2020` and `zhang2024`."""

    steps: int = 5
    tau: float = 0.8
    row_bound: float = 1.0
    constraint: float = 10.0
    damping: float = 1.0


class Policy(Response):
    """The privacy guarantee of a model, and when and how the service erases people from it."""

    epsilon: float = 1.0
    delta: float = 1e-5
    target_distance: float = 0.01
    lifetime_epsilon: float = 8.0
    batch_subjects: int = 100
    batch_age_seconds: float = 3600.0
    min_batch_subjects: int | None = None
    method: str = "tr"
    published: BaselineSettings = Field(default_factory=BaselineSettings)
    heuristic: bool = False
    curvature_probability: float | None = None
    fallback: str = "retrain"
    quality_gate: QualityGate | None = None
    max_kl_alert: float | None = None
    suppression_list: bool = False
    membership_test: bool = False
    receipt_days: int = 90
    evidence_days: int = 730
    report_days: int = 365
    time_limit_seconds: float = 3600.0
    cancellable: bool = True
    curvature_products: int = 2000


class Manifest(Response):
    """The description of a model: its family, its shape and its policy."""

    family: str
    width: int
    classes: int | None = None
    network: Network | None = None
    representation: Representation | None = None
    bias: bool = True
    lam: float = Field(alias="lambda")
    origins: Origins
    policy: Policy = Field(default_factory=Policy)
    annotations: dict[str, str] = Field(default_factory=dict)


class RepresentationFiles(Response):
    """The files of a model's representation. Those that have not arrived yet are None, as is the digest.

    `library` names the entry of the library that they belong to. It is None if they are the model's own.
    """

    digest: str | None
    graph_sha256: str | None
    graph_size: int | None
    tokenizer_sha256: str | None
    tokenizer_size: int | None
    library: str | None


class LibraryEntry(Response):
    """A representation of the library, which every model of the installation may use by its name."""

    name: str
    declaration: Representation
    digest: str
    graph_sha256: str
    graph_size: int
    tokenizer_sha256: str | None
    tokenizer_size: int | None
    created_at: datetime


class Model(Response):
    """A model. `reasons` says why registration rejected it, `report` what registration measured.

    `progress` says how far a running registration is.
    """

    id: UUID
    name: str
    state: str
    manifest: Manifest
    sigma: float
    generation: int
    reasons: tuple[str, ...]
    report: dict[str, Any] | None
    progress: dict[str, Any] | None
    representation: RepresentationFiles | None
    waiting_subjects: int
    assurance: str
    assurance_text: str
    assurance_notes: tuple[str, ...]
    created_at: datetime


class DatasetPart(Response):
    """One Parquet file of a model's training data or holdout; `size` is in bytes."""

    part: str
    role: str
    state: str
    rows: int | None
    size: int | None


class UploadStatus(Response):
    """How many bytes of a file the service has received."""

    complete: bool
    received: int
    total: int | None
    sha256: str | None


class UploadedFile(Response):
    """A file that the service has received in full."""

    sha256: str
    size: int


class AppendResult(Response):
    """The batch that adds the new parts of a dataset to a model."""

    batch_id: UUID


class FlushResult(Response):
    """How many people were waiting when the batch was sealed."""

    waiting_subjects: int


class Version(Response):
    """One published version of a model's weights. Version 0 has no certificate."""

    number: int
    state: str
    sha256: str
    size: int
    certificate_id: UUID | None
    batch_id: UUID | None
    created_at: datetime
    superseded_at: datetime | None


class LedgerEntry(Response):
    """The privacy loss of one release. A discarded draw counts as a release too.

    `shift` is s = Δ*/σ of this release. `running_shift` is √Σs² since the last retraining, and
    `running_epsilon` the ε of that sum at `delta`. The `subjects_…` fields are the same sums over the
    releases that concern the people erased here. An ε is None when the sum includes an estimate.
    """

    certificate_id: UUID
    version: int
    mechanism: str
    shift: float
    delta: float
    running_shift: float
    running_epsilon: float | None
    subjects_shift: float
    subjects_epsilon: float | None
    issued_at: datetime


class Ledger(Response):
    """The privacy loss of a model so far, and how much the policy still allows.

    `releases_left` is None when the policy retrains for every batch: retraining uses no budget.
    """

    model: str
    delta: float
    lifetime_epsilon: float
    running_shift: float
    running_epsilon: float | None
    remaining_epsilon: float | None
    releases_left: int | None
    entries: tuple[LedgerEntry, ...]
