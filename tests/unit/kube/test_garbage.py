"""Programs load without garbage collections; other code may load modules as well."""

from __future__ import annotations

import gc
import weakref

import pytest

from muster.kube.garbage import loading


class Cycle:
    """Garbage that only a collection finds."""

    def __init__(self) -> None:
        self.itself = self


@pytest.mark.parametrize("enabled", [True, False])
def test_collector_is_as_before_and_still_finds_what_is_garbage(enabled: bool) -> None:
    before = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        earlier = Cycle()
        gone = weakref.ref(earlier)
        with loading(for_good=False):
            del earlier
            assert not gc.isenabled()
        assert gc.isenabled() is enabled
        gc.collect()
        assert gone() is None
    finally:
        (gc.enable if before else gc.disable)()
