"""All kinds of problems of a node, by check and code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from muster.network.checks.node import examine, privileged
from muster.network.checks.problem import Kind

KINDS: Final[Mapping[tuple[str, str], Kind]] = {**examine.KINDS, **privileged.KINDS}
