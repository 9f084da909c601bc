"""Parts of bench.network: those of a normal run, and those that must be named."""

from __future__ import annotations

import importlib

from click.testing import CliRunner

from bench.network.__main__ import EXTRA_PARTS, PARTS, main


def test_help_says_that_mechanisms_must_be_named() -> None:
    help_ = " ".join(CliRunner().invoke(main, ["--help"]).output.split())
    assert "mechanisms runs only if it is named" in help_
    assert not set(PARTS) & set(EXTRA_PARTS)


def test_each_part_can_be_measured() -> None:
    for part in (*PARTS, *EXTRA_PARTS):
        assert callable(importlib.import_module(f"bench.network.{part}").measure), part
