"""The line that shows the stage of a wait stays one line on a narrow terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from muster.cli.local import up


@pytest.mark.parametrize("columns", [20, 60])
def test_stage_of_a_wait_fits_a_narrow_terminal(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    terminal = Console(file=out, width=columns, force_terminal=True, color_system=None)
    monkeypatch.setattr(up, "interactive", lambda: True)
    monkeypatch.setattr(up, "console", lambda: terminal)
    with up.waiting("reading what is used") as show:
        show("series of 1200 of 1650 metrics, " * 3)
    assert "reading what" in out.getvalue()
    assert out.getvalue().count("\x1b[1A") == 1  # one line was there to remove
