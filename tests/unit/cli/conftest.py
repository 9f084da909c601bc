from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def no_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Text is as wide as it wants: pytest-xdist sets COLUMNS in its workers."""
    monkeypatch.delenv("COLUMNS", raising=False)
