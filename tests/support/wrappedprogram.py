"""A folder of a control plane's programs in which one of them runs with a prefix or flags that a test changes."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Final

_WRAPPER: Final = """\
#!/bin/sh
. "{settings}"
exec $PREFIX "{program}" "$@" $FLAGS
"""


class WrappedProgram:
    """Wraps the program `name`. `folder` then holds all programs of `binaries`."""

    def __init__(self, binaries: Path, name: str, folder: Path) -> None:
        self.folder = folder
        self._settings = folder / "settings"
        for each in binaries.iterdir():
            if each.name != name:
                (folder / each.name).symlink_to(each)
        wrapper = folder / name
        wrapper.write_text(_WRAPPER.format(settings=self._settings, program=binaries / name))
        wrapper.chmod(wrapper.stat().st_mode | stat.S_IXUSR)
        self.set()

    def set(self, prefix: str = "", flags: str = "") -> None:
        """Change what the next start gets. Of a flag that occurs twice, the last one counts."""
        self._settings.write_text(f"PREFIX='{prefix}'\nFLAGS='{flags}'\n")
