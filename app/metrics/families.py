"""Small shapes that the figures share."""

from collections.abc import Mapping
from datetime import datetime

from prometheus_client.core import GaugeMetricFamily


def gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=value)


def by_label(name: str, text: str, label: str, values: Mapping[str, int]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=[label])
    for value, count in values.items():
        family.add_metric([value], count)
    return family


def age(since: datetime | None, moment: datetime) -> float:
    """In seconds; 0 when there is nothing, and when a clock is ahead."""
    return 0.0 if since is None else max((moment - since).total_seconds(), 0.0)
