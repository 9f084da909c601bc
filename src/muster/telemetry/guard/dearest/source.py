"""Where a query comes from, as Grafana says in headers.

Grafana's frontend sets these headers and its backend passes them on, so they are claims of a user: they are shown, and
decide nothing. Requests for label values, and those of other programs, have none.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Final
from urllib.parse import unquote

import msgspec

_LENGTH_MAX: Final = 100
_HEADERS: Final = (
    "X-Dashboard-Uid",
    "X-Dashboard-Title",
    "X-Panel-Id",
    "X-Panel-Title",
    "X-Rule-Uid",
    "X-Grafana-Org-Id",
)


class Source(msgspec.Struct, frozen=True):
    """The dashboard, panel or alert rule that sent a query. All texts are short and printable.

    Attributes:
        dashboard_uid: from X-Dashboard-Uid.
        dashboard_title: from X-Dashboard-Title.
        panel_id: from X-Panel-Id.
        panel_title: from X-Panel-Title.
        rule_uid: from X-Rule-Uid, which Grafana's alert rules send.
        org_id: from X-Grafana-Org-Id.
    """

    dashboard_uid: str = ""
    dashboard_title: str = ""
    panel_id: str = ""
    panel_title: str = ""
    rule_uid: str = ""
    org_id: str = ""


def source_of(headers: Mapping[str, str]) -> Source:
    """Return where a request comes from. `headers` finds names in any case."""
    return _source(*[headers.get(name, "")[: 4 * _LENGTH_MAX] for name in _HEADERS])


@lru_cache(maxsize=1024)
def _source(uid: str, title: str, panel_id: str, panel_title: str, rule_uid: str, org_id: str) -> Source:
    """Panels are asked for again and again."""
    return Source(
        printable(uid, _LENGTH_MAX),
        printable(unquote(title, errors="replace"), _LENGTH_MAX),
        printable(panel_id, _LENGTH_MAX),
        printable(unquote(panel_title, errors="replace"), _LENGTH_MAX),
        printable(rule_uid, _LENGTH_MAX),
        printable(org_id, _LENGTH_MAX),
    )


def printable(text: str, length_max: int) -> str:
    """Return the beginning of a text, with a question mark for each character that is not printable."""
    kept = text[:length_max] if len(text) <= length_max else f"{text[: length_max - 1]}…"
    return kept if kept.isprintable() else "".join(each if each.isprintable() else "?" for each in kept)
