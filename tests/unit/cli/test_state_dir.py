"""Issue 11: a wrong --name never removes or starts the cluster that MUSTER_STATE_DIR holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.cli.errors import CliError, ExitCode
from muster.cli.local.up import layout_of
from muster.cli.main import run
from muster.embedded.layout import ClusterSpec, Layout


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Layout:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("MUSTER_STATE_DIR", str(tmp_path / "state"))
    layout = Layout(tmp_path / "state")
    layout.write_spec(ClusterSpec(name="mine", nodes=1, gpus=0, port=8))
    return layout


@pytest.mark.parametrize("command", ["down", "up"])
def test_a_cluster_of_another_name_is_left_alone(
    stored: Layout, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = stored.read_spec()
    assert run([command, "--name", "other"]) == ExitCode.CONFLICT
    assert "holds the cluster 'mine', not 'other'; nothing was changed" in capsys.readouterr().err
    assert stored.read_spec() == before


def test_without_a_name_it_is_the_cluster_that_the_folder_holds(stored: Layout) -> None:
    assert layout_of("").root == stored.root
    assert layout_of("mine").root == stored.root
    with pytest.raises(CliError):
        layout_of("embedded")


def test_down_without_a_name_removes_it(stored: Layout) -> None:
    assert run(["down"]) == ExitCode.DONE
    assert not stored.root.exists()
