"""The responses of the service, as typed and immutable models.

A unit test compares every model with the OpenAPI document of the gateway. At run time the client is more
tolerant: it keeps fields it does not know, and it treats states as plain strings, because the server may be
newer than the client.
"""

from datetime import datetime
from typing import Any
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field


class Response(BaseModel):
    """The base of every model in this module: immutable, and tolerant of unknown fields."""

    model_config = ConfigDict(frozen=True, extra="allow", populate_by_name=True)


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


class Task(Response):
    """The part of an erasure that concerns one model."""

    model: str
    state: str
    batch_id: UUID | None
    on_hold: bool
    decisions: tuple[str, ...]
    completed_at: datetime | None
    version: int | None
    certificate_id: UUID | None
    outcomes: dict[str, int]
    near_matches: int
    notice: str | None

    @property
    def ended(self) -> bool:
        """Whether the task is completed, failed or withdrawn."""
        return self.state in ("completed", "failed", "withdrawn")


class Erasure(Response):
    """A request to erase people from one or more models, with one task per model.

    `summary` is the state in words. It begins with "On hold, needs a decision" if a batch is on hold.
    """

    id: UUID
    state: str
    summary: str
    subjects: int
    reference: str | None
    reason: str | None
    jurisdiction: str | None
    received_at: datetime
    due_at: datetime
    extension_reason: str | None
    withdrawal_reason: str | None
    completed_at: datetime | None
    overdue: bool
    late_days: int
    tasks: tuple[Task, ...]
    warnings: tuple[str, ...]

    @property
    def ended(self) -> bool:
        """Whether every task has ended."""
        return all(task.ended for task in self.tasks)


class Receipt(Response):
    """What one data subject receives from one model.

    `receipt` is the document to hand out. Save it as a file to check it with `lethe verify --receipt`.
    """

    model: str
    ordinal: int
    outcome: str
    certificate_id: UUID | None
    receipt: dict[str, Any] | None


class ReceiptAcknowledgement(Response):
    """How many receipts can no longer be fetched, because their salts were destroyed."""

    destroyed: int


class DecisionMade(Response):
    """The latest decision about a batch: who made it, why and when."""

    decision: str
    by: str | None
    reason: str | None
    at: datetime


class Batch(Response):
    """People who are erased from one model together.

    `summary` is the state in words, and `decisions` what can be decided now, such as "approve".
    """

    id: UUID
    model: str
    state: str
    summary: str
    decisions: tuple[str, ...]
    decided: DecisionMade | None
    sealed_because: str
    step: str | None
    subjects: int
    records: int | None
    attempt: int
    waiting_for: str | None
    shift: dict[str, float | None] | None
    progress: dict[str, Any] | None
    held_reason: str | None
    error: str | None
    warnings: tuple[str, ...]
    version: int | None
    certificate_id: UUID | None
    sealed_at: datetime
    completed_at: datetime | None

    @property
    def ended(self) -> bool:
        """Whether the batch is completed or failed. A held batch has not ended."""
        return self.state in ("completed", "failed")


class Event(Response):
    """Something that happened to a batch. Pass `id` as `after` to read the events that follow."""

    id: str
    kind: str
    data: dict[str, Any]


class ErasureProgress(Response):
    """An erasure and the batches it is in. `batches` is empty when the API key may not read batches."""

    erasure: Erasure
    batches: tuple[Batch, ...]

    @property
    def state(self) -> str:
        """The erasure's state and, if known, the states of its batches, such as "received, batch running"."""
        return ", ".join([self.erasure.state, *(f"batch {batch.state}" for batch in self.batches)])


class Certificate(Response):
    """An issued certificate; `digest` is the SHA-256 of its signed envelope."""

    id: UUID
    digest: str
    mechanism: str
    chain_index: int
    log_index: int
    created_at: datetime


class InclusionProof(Response):
    """A proof that an entry is in the certificate log. `checkpoint` is the signed tree head."""

    index: int
    size: int
    path: tuple[str, ...]
    checkpoint: str


class ConsistencyProof(Response):
    """A proof that the certificate log has only grown. `checkpoint` is the signed tree head."""

    old_size: int
    new_size: int
    path: tuple[str, ...]
    checkpoint: str


class Report(Response):
    """The fields that evaluations, audits, membership tests and advice share."""

    id: UUID
    model: str
    version: int
    state: str
    error: str | None
    created_at: datetime
    completed_at: datetime | None

    @property
    def ended(self) -> bool:
        """Whether the report is completed or failed."""
        return self.state in ("completed", "failed")


class Scores(Response):
    """Holdout scores: classifiers have an F1, ridge regression has the RMSE and R²."""

    loss: float
    micro_f1: float | None
    rmse: float | None
    r_squared: float | None


class DeltaF1(Response):
    """The difference in F1 between two models, in points, with its confidence interval."""

    points: float
    low: float
    high: float
    confidence: float


class Seconds(Response):
    """How long unlearning and retraining took. `current` is None for version 0."""

    current: float | None
    retrained: float


class Passes(Response):
    """How many passes over the rows unlearning and retraining took. `current` is None for version 0."""

    current: float | None
    retrained: float


class ClassDrift(Response):
    """How the last erasure changed the class mix, as KL divergences. One is None if a class vanished."""

    kl_retained_original: float
    kl_original_retained: float | None


class EvaluationResult(Response):
    """The scores of the current version, next to those of a model retrained on the remaining rows."""

    rows: int
    current: Scores
    retrained: Scores
    delta_f1: DeltaF1 | None
    retraining: str
    seconds: Seconds
    passes: Passes | None = None
    shift: ClassDrift | None


class Evaluation(Report):
    """An evaluation of a model's current version on its holdout."""

    result: EvaluationResult | None


class AdviceCell(Response):
    """One combination of λ and Δ*: the score to expect, the noise, and the cost of an erasure.

    `score_name` is `micro_f1` for classifiers and `r_squared` for ridge. `passes` and `seconds` are None if
    they are not known. A combination that is not `reachable` cannot be certified.
    """

    lam: float = Field(alias="lambda")
    target_distance: float
    sigma: float
    score: float
    score_name: str
    passes: float | None
    seconds: float | None
    reachable: bool


class AdviceChoice(Response):
    """The recommended combination of λ and Δ*, with the reason in a sentence."""

    lam: float = Field(alias="lambda")
    target_distance: float
    reason: str


class NetworkAdvice(Response):
    """Whether the curvature of a network seems large enough at the manifest's λ."""

    certifiable: bool
    curvature: float | None
    curvature_needed: float | None
    hessian_lipschitz: float | None
    route: str
    curvature_products: int | None
    solve_products: int
    smallest_lambda: float | None
    smallest_lambda_products: int | None


class AdviceResult(Response):
    """Figures for choosing λ and Δ*, measured only on holdout rows of people without training rows.

    A choice of λ or Δ* made after looking at rows that can be erased voids the assurance on the model's
    certificates.
    """

    rows: int
    basis: str
    fit_rows: int | None
    score_rows: int | None
    training_rows: int | None
    cells: tuple[AdviceCell, ...]
    recommendation: AdviceChoice | None
    warnings: tuple[str, ...]
    sigma_relative: float | None
    network: NetworkAdvice | None


class Advice(Report):
    """Advice for choosing λ and Δ*. Before registration, `version` is 0."""

    result: AdviceResult | None


class AuditTest(Response):
    """The outcome of one statistical test of an audit."""

    check: str
    statistic: float
    p_value: float


class AuditPower(Response):
    """How likely the audit is to detect one kind of deviation."""

    alternative: str
    power: float


class AuditResult(Response):
    """Whether the published noise is consistent with what the certificate claims."""

    verdict: str
    summary: str
    p_value: float
    level: float
    tests: tuple[str, ...]
    findings: tuple[AuditTest, ...]
    powers: tuple[AuditPower, ...]
    retained_data: str | None = None
    detectable_shift: float | None
    dimension: int
    allowance: float
    sigma: float
    target_distance: float
    replay_distance: float
    replay_seconds: float

    @property
    def consistent(self) -> bool:
        """Whether the verdict is that the noise is consistent with the certificate."""
        return self.verdict.startswith("consistent")


class Audit(Report):
    """An audit that replays a release and tests its noise."""

    certificate_id: UUID
    result: AuditResult | None


class Estimate(Response):
    """An estimated value with its confidence interval."""

    value: float
    low: float
    high: float


class Attack(Response):
    """How well one membership attack works.

    `tpr` maps false positive rates to true positive rates. A rate is None when there are too few rows to
    estimate it.
    """

    auc: Estimate
    tpr: dict[str, Estimate | None]


class Attacks(Response):
    """The two membership attacks: by the loss alone, and by a fitted classifier on loss and margin."""

    loss: Attack
    fitted: Attack


class MembershipResult(Response):
    """Membership attacks on the unlearned and on a retrained model.

    The differences are unlearned minus retrained. They are positive when unlearning left more to detect.
    """

    members: int
    unseen: int
    unlearned: Attacks
    retrained: Attacks
    delta_auc_loss: Estimate
    delta_auc_fitted: Estimate
    confidence: float


class Membership(Report):
    """A test of whether the published model still distinguishes the erased rows from unseen ones."""

    certificate_id: UUID
    result: MembershipResult | None


class ApiKey(Response):
    """An API key, without its secret."""

    id: UUID
    name: str
    scopes: tuple[str, ...]
    created_at: datetime
    revoked_at: datetime | None


class NewApiKey(ApiKey):
    """A new API key. The service returns `secret` only once, and keeps no copy of it."""

    secret: str = Field(repr=False)


class Identity(Response):
    """The tenant and the API key that a request belongs to."""

    tenant: str
    key_id: UUID
    key_name: str
    scopes: tuple[str, ...]


class Webhook(Response):
    """A URL that receives events as signed messages, without its secret. No `event_types`: all events."""

    id: UUID
    url: str
    event_types: tuple[str, ...]
    description: str
    enabled: bool
    format: str
    disabled_reason: str | None
    old_secret_until: datetime | None
    created_at: datetime


class NewWebhook(Webhook):
    """A webhook with its new secret. The service returns `secret` only once."""

    secret: str = Field(repr=False)


class Delivery(Response):
    """One message on its way to one webhook. `dead` means that all attempts failed."""

    id: UUID
    message_id: str
    state: str
    attempts: int
    status_code: int | None
    error: str | None
    next_attempt_at: datetime | None
    payload: dict[str, Any]
    created_at: datetime
    ended_at: datetime | None


class ReplayResult(Response):
    """How many dead deliveries are sent again."""

    replayed: int


class AuditActor(Response):
    """Who did something."""

    kind: str
    id: str
    name: str


class AuditEntry(Response):
    """One entry of the audit log."""

    sequence: int
    at: datetime
    actor: AuditActor
    action: str
    target: str
    details: dict[str, Any]
    hash: str
