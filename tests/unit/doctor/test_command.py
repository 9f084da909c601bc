"""Bad options of commands about the control plane are refused before anything starts."""

from __future__ import annotations

import pytest

from muster.cli.errors import ExitCode
from muster.cli.main import run


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("doctor", "--window=nan"), "nan is not a finite number"),
        (("doctor", "--audit-log=missing.log"), "File 'missing.log' does not exist"),
        (("doctor", "block", "agents/noisy", "--timeout=nan"), "nan is not a finite number"),
        (("etcd", "config", "--events-per-second=nan"), "nan is not a finite number"),
        (("readcache", "--decision-age=nan"), "nan is not a finite number"),
        (("readcache", "--max-stale=nan"), "nan is not a finite number"),
    ],
)
def test_bad_option_is_refused_with_what_to_change(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    assert run(list(arguments)) == ExitCode.BAD_INPUT
    assert message in capsys.readouterr().err
