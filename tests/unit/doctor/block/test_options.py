"""Options of `muster doctor block` that cannot be used."""

from __future__ import annotations

import pytest

from muster.cli.main import run


@pytest.mark.parametrize("length", ["0s", "1", "1d", "-1h", "169h", "1m1h", "", "99999999999999h"])
def test_length_of_a_block_is_checked(length: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "block", "agents/noisy", "--for", length]) == 2
    assert "not a length of time from 1s to 168h" in capsys.readouterr().err
