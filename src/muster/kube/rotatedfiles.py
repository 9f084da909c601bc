"""Follows small files that other programs replace: tokens, certificates and authorities.

The kubelet replaces all files of a projected volume or Secret at once, by a symbolic link. Other programs write them
one after the other, or in place. Source: https://kubernetes.io/docs/concepts/storage/projected-volumes/
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Generic, TypeVar

from muster.kube.errors import ConfigError
from muster.kube.regularfile import read_regular

T = TypeVar("T")

SETTLE_S: Final = 0.5
"""New content counts if it is the same after this time. Otherwise a program may still write it."""

log = logging.getLogger(__name__)


class RotatedFiles(Generic[T]):
    """A value made of the content of files. The last good value stays until new content can be used.

    The files are read, and the value is made, beside the event loop.

    Args:
        what: the value, for the log.
        files: paths by the fields of the configuration that name them.
        make: makes the content of the files, by field, into the value. Raises ValueError if it cannot be used. The
            text of the error goes to the log, so it must not contain a secret.
        every_s: how often to read the files.

    Raises:
        ConfigError: a file cannot be read, or `make` raised ValueError.

    Attributes:
        value: made of the last good content.
        problem: why the content of the files is not in use; "" if it is.
        reloads: how often new content came into use.
    """

    def __init__(
        self, what: str, files: Mapping[str, Path], make: Callable[[Mapping[str, bytes]], T], every_s: float
    ) -> None:
        self._what = what
        self._files = files
        self._make = make
        self._every_s = every_s
        self._content = self._read()
        self.value = self._made(self._content)
        self.problem = ""
        self.reloads = 0

    def __repr__(self) -> str:
        return f"RotatedFiles({self._what!r})"

    async def run(self, use: Callable[[T], None]) -> None:
        """Read the files until cancelled.

        Args:
            use: uses a new value, on the event loop; raises ValueError if it cannot.
        """
        while True:
            await asyncio.sleep(self._every_s)
            try:
                if await self._changed(use):
                    self.reloads += 1
                    log.info("loaded %s", self._what)
                problem = ""
            except (ConfigError, ValueError) as error:
                problem = str(error)
            if problem and problem != self.problem:
                log.warning("%s cannot be loaded, so the last one stays in use: %s", self._what, problem)
            self.problem = problem

    async def _changed(self, use: Callable[[T], None]) -> bool:
        """Use new content, and return whether there is some. Raises ConfigError and ValueError."""
        content = await asyncio.to_thread(self._read)
        if content == self._content:
            return False
        await asyncio.sleep(SETTLE_S)
        if content != await asyncio.to_thread(self._read):
            raise ConfigError(f"{' and '.join(self._files)} changed while the content was read")
        value = await asyncio.to_thread(self._made, content)
        use(value)
        self.value, self._content = value, content
        return True

    def _read(self) -> Mapping[str, bytes]:
        return {field: read_regular(path, field) for field, path in self._files.items()}

    def _made(self, content: Mapping[str, bytes]) -> T:
        try:
            return self._make(content)
        except (OSError, ValueError) as error:
            paths = " and ".join(str(path) for path in self._files.values())
            raise ConfigError(f"{' and '.join(self._files)}: {paths} cannot be used: {error}") from None
