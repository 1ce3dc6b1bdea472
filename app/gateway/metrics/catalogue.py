"""Every metric that `/metrics` offers: its name, description and labels, in one table."""

from collections.abc import Mapping
from datetime import datetime
from enum import Enum
from typing import TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

Labels = TypeVar("Labels", bound=tuple[str, ...])


class Metric(Enum):
    """A metric. The value holds its name, its description and the names of its labels."""

    HTTP_REQUESTS = (
        "lethe_http_requests",
        "HTTP requests answered by this process.",
        ("method", "route", "status"),
    )
    HTTP_REQUEST_SECONDS = (
        "lethe_http_request_seconds",
        "Time to answer an HTTP request.",
        ("method", "route"),
    )
    REQUESTS_OPEN = ("lethe_requests_open", "Open requests by time left until the deadline.", ("due",))
    REQUESTS_FAILED = ("lethe_requests_failed", "Open requests whose batch failed and needs a retry.")
    MODEL_REQUESTS_OPEN = (
        "lethe_model_requests_open",
        "Open requests by model and time left until the deadline.",
        ("tenant", "model", "due"),
    )
    BATCHES = ("lethe_batches", "Batches by state.", ("state",))
    BATCHES_HELD = ("lethe_batches_held", "Batches on hold that need a decision, by reason.", ("reason",))
    RECENT_BATCHES = ("lethe_recent_batches", "Completed batches that the stage durations are taken from.")
    STAGE_SECONDS = (
        "lethe_recent_batch_stage_seconds",
        "Time that recent batches spent in each stage, rounded up.",
        ("stage", "quantile"),
    )
    RELEASES = ("lethe_releases", "Certificates issued, by mechanism.", ("mechanism",))
    EPSILON_SPENT = (
        "lethe_model_epsilon_spent",
        "Privacy loss ε of all releases since the last retraining.",
        ("tenant", "model"),
    )
    EPSILON_CAP = ("lethe_model_epsilon_cap", "Largest ε that the policy allows.", ("tenant", "model"))
    MODELS = ("lethe_models", "Models that are not retired.")
    MODELS_NOT_SHOWN = ("lethe_models_not_shown", "Models without series of their own.")
    JOBS = ("lethe_jobs", "Unfinished jobs.", ("kind", "state"))
    JOBS_FAILING = (
        "lethe_jobs_failing",
        "Jobs that failed, or whose latest attempt failed.",
        ("kind", "state", "reason"),
    )
    JOBS_OLDEST_DUE_SECONDS = (
        "lethe_jobs_oldest_due_seconds",
        "How long the oldest job has been waiting for a worker.",
    )
    JOBS_DELAYED_SECONDS = (
        "lethe_jobs_delayed_seconds",
        "How long faults of the infrastructure have kept the most delayed job from running.",
    )
    QUEUE_MESSAGES = ("lethe_queue_messages", "Messages in the queue that no worker has taken.")
    OUTBOX_MESSAGES = ("lethe_outbox_messages", "Messages that the dispatcher has yet to send.")
    ATTEMPT_SILENCE_SECONDS = (
        "lethe_attempt_silence_seconds",
        "Time since the oldest heartbeat among the running attempts.",
    )
    WORKERS = ("lethe_workers", "Workers that reported recently.")
    DISPATCHER_ACTIVE = ("lethe_dispatcher_active", "1 if a dispatcher holds the lease, otherwise 0.")
    PART_UP = ("lethe_part_up", "1 if the part answers, otherwise 0.", ("part",))
    LOG_SIZE = ("lethe_log_size", "Entries in the certificate log.")
    LOG_CONSISTENT = (
        "lethe_log_consistent",
        "1 if the signed tree head, the stored tree and the number of entries agree, otherwise 0.",
    )
    WEBHOOK_DELIVERIES = (
        "lethe_webhook_deliveries",
        "Webhook deliveries that are pending or were given up.",
        ("state",),
    )
    WEBHOOK_OLDEST_PENDING_SECONDS = (
        "lethe_webhook_oldest_pending_seconds",
        "Age of the oldest pending webhook delivery.",
    )

    def __init__(self, metric_name: str, description: str, labels: tuple[str, ...] = ()) -> None:
        self.metric_name, self.description, self.labels = metric_name, description, labels


def gauge(metric: Metric, value: float) -> GaugeMetricFamily:
    """Return a gauge without labels."""
    return GaugeMetricFamily(metric.metric_name, metric.description, value=value)


def labelled_gauge(metric: Metric, values: Mapping[Labels, float]) -> GaugeMetricFamily:
    """Return a gauge with one value for each combination of labels."""
    family = GaugeMetricFamily(metric.metric_name, metric.description, labels=metric.labels)
    for labels, value in values.items():
        family.add_metric(labels, value)
    return family


def gauge_by(metric: Metric, values: Mapping[str, float]) -> GaugeMetricFamily:
    """Return a gauge with one label."""
    return labelled_gauge(metric, {(label,): value for label, value in values.items()})


def counter_by(metric: Metric, values: Mapping[str, float]) -> CounterMetricFamily:
    """Return a counter with one label."""
    family = CounterMetricFamily(metric.metric_name, metric.description, labels=metric.labels)
    for label, value in values.items():
        family.add_metric([label], value)
    return family


def seconds_since(start: datetime | None, moment: datetime) -> float:
    """Return the seconds from `start` to `moment`, or 0 without a start or if a clock runs ahead."""
    return 0.0 if start is None else max((moment - start).total_seconds(), 0.0)
