"""The alerts that a test declares."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.scenarios.telemetry.rules import Expected
from tests.support.ownserver import OwnServer, embedded_server, real_server


@pytest.fixture(scope="module", params=["embedded", pytest.param("real", marks=pytest.mark.real)])
def plane(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnServer]:
    """The API server of a module."""
    if request.param == "embedded":
        with embedded_server(tmp_path_factory.mktemp("plane")) as server:
            yield server
    else:
        with real_server(request) as server:
            yield server


@pytest.fixture(autouse=True)
def expected(request: pytest.FixtureRequest) -> Iterator[Expected]:
    """The alerts of `@pytest.mark.fires`. The test fails if one of them has not fired."""
    mark = request.node.get_closest_marker("fires")
    found = Expected(mark.args if mark is not None else ())
    yield found
    assert not found.missing, f"{sorted(found.missing)} did not fire"
