"""Reads a page of metrics in the text format, as typed samples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from muster.telemetry.prometheus.errors import PrometheusError


class PageSample(NamedTuple):
    """A sample of a page."""

    name: str
    labels: dict[str, str]
    value: float


class Page:
    """Samples of a page, by name."""

    def __init__(self, samples: Iterable[PageSample]) -> None:
        """Store the samples."""
        self._by_name: dict[str, list[PageSample]] = {}
        for sample in samples:
            self._by_name.setdefault(sample.name, []).append(sample)

    def samples(self, name: str) -> list[PageSample]:
        """Return the samples of a name."""
        return self._by_name.get(name, [])

    def value(self, name: str) -> float | None:
        """Return the value of a metric with one series; None without it. With several series their sum."""
        found = self.samples(name)
        return sum(each.value for each in found) if found else None


def parse_page(body: bytes) -> Page:
    """Parse a page. Raises PrometheusError if it is not one of metrics."""
    try:
        return Page(_samples(body.decode()))
    except (ValueError, IndexError, KeyError) as error:
        raise PrometheusError(200, f"the page is not one of metrics: {error}", "not-prometheus") from error


def _samples(text: str) -> Iterator[PageSample]:
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            yield PageSample(sample.name, dict(sample.labels), sample.value)
