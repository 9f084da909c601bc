"""Issue 17, A1: how long label sets are in an answer, by some series that the server sent."""

from __future__ import annotations

import json
from typing import Any

import pytest

from muster.telemetry.guard.pricing.labelsets import LabelSets, read_label_sets
from muster.telemetry.promql.kept import ALL, NOTHING, kept_only, kept_without


def answer(sets: list[dict[str, str]], samples: int | None = None, **point: Any) -> bytes:
    data: dict[str, Any] = {"result": [{"metric": each, **(point or {"value": [0, "1"]})} for each in sets]}
    if samples is not None:
        data["stats"] = {"samples": {"totalQueryableSamples": samples}}
    return json.dumps({"status": "success", "data": data}, ensure_ascii=False).encode()


def read(sets: list[dict[str, str]], series: int = 2, **more: Any) -> LabelSets:
    found = read_label_sets(answer(sets, **more), series)
    assert found is not None
    return found


def written(labels: dict[str, str]) -> int:
    return len(json.dumps(labels, ensure_ascii=False, separators=(",", ":")).encode())


SETS = [{"pod": "a-1", "zone": "北京"}, {"pod": "a-" + "x" * 99, "zone": 'quote"d\\'}]


def test_bytes_are_those_of_the_answer_on_average() -> None:
    assert read(SETS).bytes_of(ALL) == pytest.approx(sum(map(written, SETS)) / 2, abs=1.01)


@pytest.mark.parametrize(
    ("kept", "labels"),
    [
        (kept_only(["pod"]), {"pod"}),
        (kept_only(["pod", "absent"]), {"pod"}),
        (kept_without(["pod"]), {"zone"}),
        (NOTHING, set()),
    ],
)
def test_bytes_are_those_of_labels_that_remain(kept: Any, labels: set[str]) -> None:
    remaining = [{name: value for name, value in each.items() if name in labels} for each in SETS]
    assert read(SETS).bytes_of(kept) == pytest.approx(sum(map(written, remaining)) / 2, abs=1.01)


def test_label_of_some_series_counts_for_these_only() -> None:
    found = read([{"a": "1234"}, {}])
    assert found.bytes_of(ALL) == pytest.approx((written({"a": "1234"}) + written({})) / 2, abs=1.01)
    assert found.values == {"a": 4}


def test_histograms_are_as_long_as_those_that_were_sent() -> None:
    histogram = [0, {"count": "4", "buckets": [[0, "1", "2", "4"]] * 20}]
    found = read([{"a": "1"}, {"a": "2"}], histogram=histogram)
    assert found.histogram_bytes > len(json.dumps(histogram))
    assert read(SETS).histogram_bytes == 0


@pytest.mark.parametrize(("samples", "each"), [(82, 41.0), (2, 1.0), (0, 1.0), (None, 1.0)])
def test_series_count_as_many_samples_as_the_server_counted(samples: int | None, each: float) -> None:
    assert read(SETS, series=2, samples=samples).samples == each


@pytest.mark.parametrize("body", [b"", b"{}", b'{"data":{"result":[]}}', b'{"data":{"result":[{"metric":1}]}}'])
def test_answer_without_series_says_nothing(body: bytes) -> None:
    assert read_label_sets(body, 1) is None
