"""Reads the file `guard.yaml` and the file of authorities that it names, again when they change."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from muster.kube.errors import BadConfig, ConfigError
from muster.kube.regularfile import read_regular
from muster.telemetry.guard.config import GuardConfig, parse_config

CHECK_S: Final = 2.0
"""How often the files are read. A kubelet updates the files of a ConfigMap within about a minute."""

log = logging.getLogger(__name__)

_Error = BadConfig | ConfigError


@dataclass(frozen=True, slots=True)
class Loaded:
    """The content of the files.

    Attributes:
        config: the configuration.
        authorities_pem: content of `callers.certificates.caFile`; empty without one.
    """

    config: GuardConfig
    authorities_pem: bytes = b""


class ConfigFile:
    """The configuration in use. Create it, and start `run` once the parts that use it are there.

    A text of 100 callers takes 0.1 s to parse, so it is parsed once, and beside the event loop.

    Args:
        path: the file.

    Raises:
        ConfigError: a file cannot be read.
        ConfigTextError: the configuration is not valid.

    Attributes:
        loaded: what is in use.
        problem: why the files on disk are not in use; "" if they are.
        reloads: how often new content came into use.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._text: bytes | None = None
        self._parsed: GuardConfig | _Error
        self.loaded = self._read()
        self.problem = ""
        self.reloads = 0

    async def run(self, apply: Callable[[Loaded], None]) -> None:
        """Look at the files until cancelled. New content that cannot be used is reported, and the old stays in use.

        Args:
            apply: uses new content; raises BadConfig if it cannot.
        """
        while True:
            await asyncio.sleep(CHECK_S)
            self._use(await asyncio.to_thread(self._look), apply)

    def check(self, apply: Callable[[Loaded], None]) -> None:
        """Look at the files once; see `run`."""
        self._use(self._look(), apply)

    def _look(self) -> Loaded | _Error:
        try:
            return self._read()
        except (BadConfig, ConfigError) as error:
            return error

    def _use(self, found: Loaded | _Error, apply: Callable[[Loaded], None]) -> None:
        problem = "" if isinstance(found, Loaded) else str(found)
        if isinstance(found, Loaded) and found != self.loaded:
            try:
                _check_fixed(self.loaded.config, found.config)
                apply(found)
                self.loaded = found
                self.reloads += 1
                log.info("loaded the new configuration in %s", self._path)
            except (BadConfig, ConfigError) as error:
                problem = str(error)
        if problem and problem != self.problem:
            log.warning("the configuration that was loaded before stays in use: %s", problem)
        self.problem = problem

    def _read(self) -> Loaded:
        text = read_regular(self._path, "--config")
        if text != self._text:
            self._parsed = _parse(text, str(self._path))
            self._text = text
        if not isinstance(self._parsed, GuardConfig):
            raise self._parsed.with_traceback(None)  # each raise adds to the traceback of before
        authorities = self._parsed.callers.certificates.ca_file
        return Loaded(
            self._parsed, read_regular(Path(authorities), "callers.certificates.caFile") if authorities else b""
        )


def _parse(text: bytes, file: str) -> GuardConfig | _Error:
    try:
        return parse_config(text.decode(errors="replace"), file)
    except (BadConfig, ConfigError) as error:
        return error


def _check_fixed(old: GuardConfig, new: GuardConfig) -> None:
    """Raise BadConfig if a part changed that only a new process uses."""
    changed = [name for name in ("upstream", "tls") if getattr(old, name) != getattr(new, name)]
    if changed:
        names = " and ".join(changed)
        raise BadConfig(f"{names} changed, which a running guard keeps; nothing of the new file is used; restart it")
