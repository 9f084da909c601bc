"""Finds the chart: in a source checkout, or inside the installed package."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_CHECKOUT: Final = Path(__file__).resolve().parents[3] / "deploy" / "chart" / "muster"
_PACKAGED: Final = Path(__file__).resolve().parents[1] / "deploy" / "chart" / "muster"


class ChartMissingError(Exception):
    """The chart is neither in a checkout nor in the package."""


def chart() -> Path:
    """Return the folder of the chart. Raises ChartMissingError."""
    for folder in (_CHECKOUT, _PACKAGED):
        if (folder / "Chart.yaml").is_file():
            return folder
    raise ChartMissingError(f"the package holds no chart ({_PACKAGED}); install it again from a wheel of `make wheel`")
