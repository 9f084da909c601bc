"""Bad input to `muster doctor price` is refused before any request."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from muster.cli.errors import ExitCode
from muster.cli.main import run
from tests.support.daemonpods import daemonset


@pytest.fixture
def manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.setenv("HOME", str(tmp_path))
    path = tmp_path / "daemonset.yaml"
    path.write_text(yaml.safe_dump(daemonset("telemetry", "image")))
    return path


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--audit-log=/dev/null",), "planned number of nodes is missing"),
        (("--canary=2", "--nodes=10"), "a canary needs a source of its requests"),
        (("--budget=speed=5",), "is not a limit"),
        (("--objects=services",), "is not RESOURCE=N"),
        (("--nodes=0",), "0 is not in the range"),
        (("--audit-log=missing.log",), "File 'missing.log' does not exist"),
        (("--for=nan",), "nan is not a finite number"),
        (("--baseline=nan",), "nan is not a finite number"),
        (("--canary=21", "--nodes=10"), "21 is not in the range"),
    ],
)
def test_bad_options_are_refused_with_what_to_change(
    manifest: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    assert run(["doctor", "price", str(manifest), *arguments]) == ExitCode.BAD_INPUT
    assert message in capsys.readouterr().err


def test_sidecar_patch_needs_no_cluster(manifest: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "price", str(manifest), "--print-sidecar=muster:1"]) == ExitCode.DONE
    patch = yaml.safe_load(capsys.readouterr().out)
    assert patch["spec"]["template"]["spec"]["containers"][0]["name"] == "main"


def test_without_a_cluster_the_command_says_so(manifest: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "price", str(manifest)]) == ExitCode.NO_CLUSTER
    assert capsys.readouterr().err
