"""docs/reference/cli.md is what the commands say."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.cli import reference
from muster.cli.main import COMMANDS


def test_the_page_is_what_the_commands_say() -> None:
    assert reference.PAGE.read_text(encoding="utf-8") == reference.page(), "run: python -m muster.cli.reference"


def test_every_command_and_option_is_on_it() -> None:
    page = reference.page()
    assert all(f"### muster {name}\n" in page for name in COMMANDS)
    assert "#### muster fault node\n" in page
    assert page.count("`--kubeconfig FILE`") == 3, "once for all, and that of the controller and of the webhook"


def test_check_fails_where_the_page_is_stale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "PAGE", tmp_path / "cli.md")
    assert reference.main(["--check"]) == 1
    assert reference.main([]) == 0
    assert reference.main(["--check"]) == 0
    assert reference.main(["--other"]) == 2
