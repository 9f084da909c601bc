"""Bad input of `muster admission` is named before anything is contacted."""

from __future__ import annotations

import pytest

from muster.cli.main import run


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--team-key=a/b/c"], "--team-key 'a/b/c' is not a label key"),
        (["--namespace-key=-x"], "--namespace-key '-x' is not a label key"),
        (["--listen=8443"], "'8443' is not HOST:PORT"),
        (["--metrics-listen=127.0.0.1:99999"], "is not HOST:PORT"),
    ],
)
def test_bad_input_is_named(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["admission", *arguments]) == 2
    assert said in capsys.readouterr().err
