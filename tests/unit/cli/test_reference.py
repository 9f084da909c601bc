"""docs/reference/cli.md is what the commands say."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.cli.main import COMMANDS
from muster.cli.reference import commands


def test_the_page_is_what_the_commands_say() -> None:
    assert commands.PAGE.read_text(encoding="utf-8") == commands.page(), "run: python -m muster.cli.reference.commands"


def test_every_command_and_option_is_on_it() -> None:
    page = commands.page()
    assert all(f"### muster {name}\n" in page for name in COMMANDS)
    assert "#### muster fault node\n" in page
    assert page.count("`--kubeconfig FILE`") == 6, "once for all, and that of each process of the chart"


def test_check_fails_where_the_page_is_stale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "PAGE", tmp_path / "cli.md")
    assert commands.main(["--check"]) == 1
    assert commands.main([]) == 0
    assert commands.main(["--check"]) == 0
    assert commands.main(["--other"]) == 2
