"""Readers that leave no trace: federation and remote write."""

from __future__ import annotations

from typing import Any

import pytest

from muster.telemetry.usage.consumers import RemoteWrite, checked_selector, federated_selectors
from muster.telemetry.usage.inputs.files import InputError


def test_selectors_of_federation_are_found() -> None:
    jobs = [
        {"job_name": "federate", "metrics_path": "/federate", "params": {"match[]": ['{job="a"}', "up"]}},
        {"job_name": "prefixed", "metrics_path": "/prometheus/federate/", "params": {"match[]": ["b"]}},
        {"job_name": "other", "params": {"match[]": ["c"]}},
    ]
    assert list(federated_selectors({"scrape_configs": jobs})) == ['{job="a"}', "up", "b"]
    assert list(federated_selectors({"scrape_configs": None})) == []


@pytest.mark.parametrize("text", ["", "sum(a)", "{", "a[5m]"])
def test_text_that_is_not_a_selector_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="is not a selector"):
        checked_selector(text)


@pytest.mark.parametrize(
    ("steps", "sent"),
    [
        (None, "a b"),
        ([{"source_labels": ["__name__"], "regex": "a", "action": "keep"}], "a"),
        ([{"source_labels": ["__name__"], "regex": "a", "action": "drop"}], "b"),
        ([{"source_labels": ["job", "__name__"], "regex": "x;a", "action": "drop"}], "b"),
        ([{"source_labels": ["job", "__name__"], "separator": "-", "regex": "x-a", "action": "keep"}], "a"),
        ([{"source_labels": ["pod"], "regex": "p", "action": "keep"}], "a b"),
        (
            [{"regex": "pod", "action": "labeldrop"}, {"source_labels": ["__name__"], "regex": "b", "action": "Drop"}],
            "a",
        ),
        (
            [
                {"target_label": "x", "replacement": "y"},
                {"source_labels": ["__name__"], "regex": "b", "action": "drop"},
            ],
            "a",
        ),
        (
            [
                {"target_label": "__name__", "replacement": "y"},
                {"source_labels": ["__name__"], "regex": "y", "action": "drop"},
            ],
            "a b",
        ),
        ([{"source_labels": ["__name__"], "regex": "(a+)+", "action": "drop"}], "a b"),
        ([{"source_labels": ["__name__"], "action": "drop"}], ""),
    ],
)
def test_metrics_that_remote_write_may_send(steps: Any, sent: str) -> None:
    remote = RemoteWrite([{"remote_write": [{"url": "http://u:p@host/x?key=s", "write_relabel_configs": steps}]}])
    assert " ".join(name for name in ("a", "b") if remote.sends(name, "x")) == sent
    assert remote.urls == ["host/x"]


def test_server_without_remote_write_sends_nothing() -> None:
    assert not RemoteWrite([{}, {"remote_write": None}]).sends("a", "x")
