"""Memory of a request in the bench of the guard."""

from __future__ import annotations

from typing import cast

import pytest

from bench.guard.memory import InUse
from bench.guard.servers import figures
from tests.support.prometheus import Prometheus


class Page:
    """A server with a page of metrics."""

    def page(self) -> str:
        return "# TYPE go_memstats_sys_bytes gauge\ngo_memstats_sys_bytes 1.5e+09\nup_total 3\nup 1\n"


def test_idle_pages_that_are_returned_or_used_again_do_not_change_the_growth() -> None:
    shrunk = InUse(before_bytes=900, resident_bytes=1500, peak_bytes=1100, resident_peak_bytes=1400)
    reused = InUse(before_bytes=900, resident_bytes=1500, peak_bytes=1100, resident_peak_bytes=1500)
    assert (shrunk.grown_bytes, reused.grown_bytes) == (200, 200)


def test_peak_between_two_samples_counts_by_resident_memory() -> None:
    assert InUse(before_bytes=900, resident_bytes=1000, peak_bytes=900, resident_peak_bytes=1300).grown_bytes == 300


def test_figures_of_a_page_are_found_by_their_whole_name() -> None:
    server = cast(Prometheus, Page())
    assert figures(server, "up", "go_memstats_sys_bytes") == [1.0, 1.5e9]
    with pytest.raises(RuntimeError, match="go_memstats_heap"):
        figures(server, "go_memstats_heap_idle_bytes")
