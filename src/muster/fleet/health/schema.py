"""Generates the reference of the policy: `python -m muster.fleet.health.schema [--check]`.

It writes the JSON schema of policies for editors. It also writes a page with every Xid, Muster's action and the
advice of vendors.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from muster.api.generated import write_or_check
from muster.fleet.health.policy import ELSEWHERE, UNKNOWN_CODE, Entry
from muster.fleet.health.policyfields import PolicyText
from muster.fleet.health.policytext import CATALOGUE, default_policy

ROOT: Final = Path(__file__).resolve().parents[4]
_HOW: Final = "python -m muster.fleet.health.schema"


def schema_text() -> str:
    """Return the JSON schema."""
    schema = msgspec.json.schema(PolicyText)
    whole = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Health policy", **schema}
    return json.dumps(whole, indent=2, ensure_ascii=False) + "\n"


def page() -> str:
    """Return every Xid of the policy as Markdown."""
    codes = {code: entry for code, entry in default_policy().codes["xid"].items() if code != UNKNOWN_CODE}
    plain = {code: entry for code, entry in codes.items() if code.isdigit()}
    missing = {name: sum(name not in entry.elsewhere for entry in plain.values()) for name in ELSEWHERE}
    said = ", ".join(f"{name} {count}" for name, count in missing.items())
    actions = Counter(entry.action for entry in plain.values())
    lines = [
        "# Xids",
        "",
        f"<!-- Written by {_HOW}; change src/muster/fleet/health/{CATALOGUE.name} instead. -->",
        "",
        "An Xid is the number of an error that NVIDIA's driver reports. This table lists the default policy's action",
        f"for each of the {len(plain)} codes in NVIDIA's catalogue. It also lists {len(codes) - len(plain)} codes with",
        "details after a slash ([Node health](../health.md#codes)).",
        "",
        "The columns NVIDIA to Azure show the advice of vendors. *NVIDIA* and *then* are the first and the second",
        "action that NVIDIA's catalogue recommends. The policy file names the sources. Number of codes without",
        f"advice: {said}.",
        "",
        f"Number of codes by action: {', '.join(f'{action} {count}' for action, count in actions.most_common())}.",
        "",
        "| Xid | meaning | action | fault | NVIDIA | then | EKS | gpud | Azure |",
        "|---|---|---|---|---|---|---|---|---|",
        *_rows(codes),
    ]
    return "\n".join(lines) + "\n"


def _rows(codes: dict[str, Entry]) -> Iterator[str]:
    for code, entry in codes.items():
        action = f"{entry.action}, {entry.job}" if entry.job else entry.action
        others = [entry.elsewhere.get(name, "") for name in ELSEWHERE]
        yield f"| {' | '.join([code, entry.what, action, entry.fault, *others])} |"


def main(arguments: list[str]) -> int:
    """Write the files, or compare them with --check. Returns the exit status."""
    files = {
        ROOT / "docs/reference/healthpolicy.schema.json": schema_text,
        ROOT / "docs/reference/xid.md": page,
    }
    return write_or_check(arguments, lambda: {path: text() for path, text in files.items()}, _HOW, "the policy says")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
