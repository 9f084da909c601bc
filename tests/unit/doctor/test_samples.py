"""Pages of metrics, and increases between two of them."""

from __future__ import annotations

import pytest

from muster.doctor.histogram import Histogram, histograms
from muster.doctor.samples import Server, compare, labels_of, parse

FAMILIES = frozenset({"requests_total", "seconds"})


def compared(before: str, after: str, seconds: float = 10.0, after_at: float = 10_000.0) -> Server | None:
    return compare("https://api", parse(before, FAMILIES), parse(after, FAMILIES), seconds, after_at)


def rates(server: Server | None) -> dict[str, float]:
    assert server is not None
    return {labels.get("code", ""): rate for labels, rate in server.rates("requests_total")}


def test_only_wanted_families_are_kept() -> None:
    text = (
        "# HELP requests_total Requests.\n"
        "# TYPE requests_total counter\n"
        'requests_total{code="200",path="/a{b} c,d=\\"e\\""} 3 1700000000000\n'
        'requests_total_other{code="200"} 5\n'
        'seconds_bucket{le="+Inf"} 1e+06\n'
        "process_start_time_seconds 7.5\n"
    )
    page = parse(text, FAMILIES)
    assert set(page.series) == {"requests_total", "seconds_bucket", "process_start_time_seconds"}
    ((text_of_labels, value),) = page.series["requests_total"].items()
    assert (labels_of(text_of_labels), value) == ({"code": "200", "path": '/a{b} c,d=\\"e\\"'}, 3.0)
    assert page.series["seconds_bucket"]['le="+Inf"'] == 1e6
    assert page.start == 7.5


@pytest.mark.parametrize("value", ["NaN", "", "many", "{"])
def test_value_that_is_not_a_number_is_left_out(value: str) -> None:
    assert parse(f'requests_total{{code="200"}} {value}\n', FAMILIES).series == {}


def test_rate_is_the_increase_per_second() -> None:
    before = 'requests_total{code="200"} 100\n'
    after = 'requests_total{code="200"} 150\nrequests_total{code="429"} 20\n'
    assert rates(compared(before, after)) == {"200": 5.0, "429": 2.0}


def test_process_that_restarted_counts_from_its_start() -> None:
    before = 'process_start_time_seconds 100\nrequests_total{code="200"} 100000\n'
    after = 'process_start_time_seconds 9980\nrequests_total{code="200"} 200\n'
    assert rates(compared(before, after)) == {"200": 10.0}


def test_clock_that_is_late_does_not_give_a_negative_time() -> None:
    after = 'process_start_time_seconds 10050\nrequests_total{code="200"} 200\n'
    assert rates(compared("process_start_time_seconds 100\n", after)) == {"200": 20.0}


def test_old_process_that_did_not_answer_before_is_not_compared() -> None:
    assert compared("process_start_time_seconds 100\n", "process_start_time_seconds 200\n") is None


def test_counter_that_was_reset_counts_from_zero() -> None:
    assert rates(compared('requests_total{code="200"} 100\n', 'requests_total{code="200"} 30\n')) == {"200": 3.0}


def histogram_page(slow: int, fast: int, verb: str = "GET") -> str:
    return (
        f'seconds_bucket{{verb="{verb}",le="0.5"}} {fast}\n'
        f'seconds_bucket{{verb="{verb}",le="1"}} {fast}\n'
        f'seconds_bucket{{verb="{verb}",le="5"}} {fast + slow}\n'
        f'seconds_bucket{{verb="{verb}",le="+Inf"}} {fast + slow}\n'
        f'seconds_sum{{verb="{verb}"}} {fast * 0.1 + slow * 2}\n'
        f'seconds_count{{verb="{verb}"}} {fast + slow}\n'
    )


def test_histogram_holds_the_observations_of_the_window_and_of_all_servers() -> None:
    one = compared(histogram_page(50, 1000), histogram_page(60, 1090))
    two = compared(histogram_page(0, 0), histogram_page(0, 100))
    assert one is not None
    assert two is not None
    seen = histograms((one, two), "seconds", ("verb",))[("GET",)]
    assert seen.count == pytest.approx(200)
    assert seen.above(1.0) == pytest.approx(10)
    assert seen.above(0.7) == pytest.approx(10)
    assert seen.above(5.0) == 0
    assert seen.above(60.0) == 0
    assert (seen.quantile(0.5), seen.quantile(0.99)) == (0.5, 5.0)
    assert seen.mean == pytest.approx((190 * 0.1 + 10 * 2) / 200)


def test_histogram_without_observations_is_zero() -> None:
    page = compared(histogram_page(5, 5), histogram_page(5, 5))
    assert page is not None
    assert histograms((page,), "seconds", ("verb",)) == {}
    assert (Histogram().mean, Histogram().quantile(0.99), Histogram().above(0.1)) == (0, 0, 0)


def test_bucket_without_an_observation_shows_that_all_took_longer() -> None:
    page = compared(histogram_page(5, 5), histogram_page(25, 5))
    assert page is not None
    assert histograms((page,), "seconds", ("verb",))[("GET",)].above(1.0) == 20
