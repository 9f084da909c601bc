"""Writes docs/reference/sdk.md from the docstrings of the SDK: `python -m muster.cli.reference.sdk [--check]`."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import muster
from muster.api.generated import write_or_check

PAGE: Final = Path(__file__).resolve().parents[4] / "docs/reference/sdk.md"
_HOW: Final = "python -m muster.cli.reference.sdk"

_HEAD: Final = f"""# SDK

<!-- Written by {_HOW}; change src/muster/sdk instead. -->

`import muster` in a training program: Python 3.8 or later, the standard library only. A script needs none of it to
run. Without Muster the same calls work on one machine: reports go nowhere, and checkpoints go to
`MUSTER_CHECKPOINT_DIR`. Names end in their units (`_s`: seconds).
"""

_PARTS: Final = {
    "Progress": ("report",),
    "Checkpoints": (
        "save_checkpoint",
        "load_checkpoint",
        "last_checkpoint",
        "should_checkpoint",
        "checkpoint_dir",
        "Checkpoint",
        "CheckpointFiles",
        "Saving",
    ),
    "Place in the job": ("rank", "world_size", "local_rank", "local_world_size", "node_rank", "attempt", "backfilled"),
    "Errors": ("StaleAttempt", "ControllerUnavailable", "CheckpointNotSaved", "NoGoodCheckpoint"),
}
_SECTIONS: Final = ("Args", "Attributes", "Returns", "Raises")


def parts() -> dict[str, list[str]]:
    """Returns names by heading. Names without a heading come last, so that nothing is left out."""
    known = {name for names in _PARTS.values() for name in names}
    public = [name for name in muster.__all__ if not name.startswith("_")]
    found = {part: [name for name in names if name in public] for part, names in _PARTS.items()}
    others = [name for name in public if name not in known]
    return found | ({"More": others} if others else {})


def page() -> str:
    """The page as Markdown."""
    lines = [_HEAD]
    for part, names in parts().items():
        lines.append(f"\n## {part}\n")
        for name in names:
            lines += _entry(name, getattr(muster, name))
    return "".join(lines)


def _entry(name: str, value: Any) -> Iterator[str]:
    yield f"\n### {name}\n\n"
    members = list(_members(value))
    if inspect.isclass(value) and issubclass(value, BaseException):
        yield f"```python\nclass muster.{name}(Exception)\n```\n"
    elif members:  # a class whose objects the SDK makes
        yield f"```python\nclass muster.{name}\n```\n"
    elif callable(value):
        yield f"```python\nmuster.{name}{_signature(value)}\n```\n"
    yield f"\n{_text(inspect.getdoc(value) or '')}\n"
    yield from members


def _members(value: Any) -> Iterator[str]:
    """The public properties and methods that a class itself defines."""
    if not inspect.isclass(value) or issubclass(value, (BaseException, tuple)):
        return
    for name, member in vars(value).items():
        if name.startswith("_"):
            continue
        doc = _text(inspect.getdoc(member) or "")
        if isinstance(member, property):
            yield f"\nProperty `{name}`: {doc}\n"
        elif inspect.isfunction(member):
            yield f"\nMethod `{name}{_signature(member).replace('self, ', '')}`: {doc}\n"


def _signature(value: Any) -> str:
    return str(inspect.signature(value)).replace("'", "")


def _text(doc: str) -> str:
    """A docstring in Google's style as Markdown: its sections as lists."""
    out = []
    for paragraph in doc.split("\n\n"):
        heading, _, rest = paragraph.partition(":\n")
        if heading not in _SECTIONS:
            out.append(paragraph)
            continue
        items = re.split(r"\n(?=\S)", inspect.cleandoc(rest))
        out.append(f"{heading}:\n\n" + "\n".join(_item(" ".join(item.split())) for item in items))
    return "\n\n".join(out)


def _item(text: str) -> str:
    name, colon, words = text.partition(": ")
    return f"- `{name}`: {words}" if colon else f"- {text}"


def main(arguments: list[str]) -> int:
    """Write the page, or with --check compare it; returns the exit status."""
    return write_or_check(arguments, lambda: {PAGE: page()}, _HOW, "the docstrings say")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
