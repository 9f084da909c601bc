"""The check `kubelet`: the kubelet's health page, its last pod relist (PLEG), and the container runtime.

/healthz of the kubelet shows that its process serves requests (--healthz-port). Its last pod relist (PLEG) is only on
its metrics page, which needs rights except on the read-only port. The usual cause of a stuck relist is a container
runtime that hangs, so the runtime is queried directly with CRI's Status.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import msgspec

from muster.agent.aside import Aside
from muster.agent.check import Cost, Setup
from muster.agent.checks.http import HttpError, check_url, get
from muster.agent.checks.runtimestatus import NETWORK_READY, RUNTIME_READY, runtime_status
from muster.agent.checks.sights import Findings, Seen, Sight
from muster.fleet.health.finding import Finding
from muster.kube.connection.grpcunix import CallError

log = logging.getLogger(__name__)

NAME: Final = "kubelet"
PERIOD_S: Final = 20.0
TIMEOUT_S: Final = 18.0
CODES: Final = frozenset({(NAME, "unhealthy"), (NAME, "runtime"), (NAME, "network"), (NAME, "pleg")})

_ASK_S: Final = 5.0
_LOOKS: Final = 3
"""Failed queries in a row before a finding: kubelet and runtime restart for updates in under a minute."""
_PLEG: Final = re.compile(r"^kubelet_pleg_last_seen_seconds(?:\{[^}]*\})?\s+(\S+)", re.MULTILINE)
_WORDS_MAX: Final = 120


class Options(msgspec.Struct, frozen=True, rename="camel"):
    """Settings of the check.

    Attributes:
        healthz_url: the kubelet's health page; empty to skip it.
        metrics_url: its metrics page, such as the read-only port's; empty to skip it.
        runtime_sockets: of the container runtime; the first existing one is used.
        pleg_s: the longest time since its last pod relist; the kubelet's own limit is three minutes.
    """

    healthz_url: str = "http://127.0.0.1:10248/healthz"
    metrics_url: str = ""
    runtime_sockets: tuple[str, ...] = ("/run/containerd/containerd.sock", "/run/crio/crio.sock")
    pleg_s: Annotated[float, msgspec.Meta(gt=0)] = 180.0


class KubeletCheck:
    """Checks the kubelet and the container runtime."""

    name = NAME
    cost: Cost = "cheap"  # it mostly waits, and must not delay other checks

    def __init__(self, setup: Setup, options: Options) -> None:
        self.period_s = setup.period_s or PERIOD_S
        self.timeout_s = setup.timeout_s or TIMEOUT_S
        self._options = options
        self._root = setup.host.root
        self._findings = Findings(NAME, self.period_s)
        self._aside = Aside(NAME)
        self._socket = ""
        self._forbidden = False

    async def look(self, now_s: float) -> Sequence[Finding]:
        """Query the kubelet and the runtime once."""
        states = [*await self._kubelet(), *await self._pleg(now_s), *await self._runtime()]
        return self._findings.take(Seen(states=tuple(states)), now_s)

    async def _kubelet(self) -> list[Sight]:
        if not self._options.healthz_url:
            return []
        why = ""
        try:
            answer = await self._aside.run(get, self._options.healthz_url, _ASK_S)
            if answer.status != 200:
                why = f"status {answer.status}: {answer.text[:_WORDS_MAX]}"
        except HttpError as error:
            why = str(error)
        return [Sight(NAME, "", "unhealthy", why, looks=_LOOKS)] if why else []

    async def _pleg(self, now_s: float) -> list[Sight]:
        if not self._options.metrics_url:
            return []
        try:
            answer = await self._aside.run(get, self._options.metrics_url, _ASK_S)
        except HttpError:
            return []  # the health page reports that already
        age_s = pleg_age_s(answer.text, now_s) if answer.status == 200 else None
        if age_s is None or age_s <= self._options.pleg_s:
            return []
        return [Sight(NAME, "", "pleg", f"the last pod relist was {age_s:.0f} s ago")]

    async def _runtime(self) -> list[Sight]:
        socket = next((path for path in self._options.runtime_sockets if self._place(path).exists()), self._socket)
        if not socket:
            return []  # it may not have started yet, or use another path
        self._socket = socket
        try:
            conditions = await runtime_status(str(self._place(socket)), _ASK_S)
        except PermissionError:
            if not self._forbidden:
                log.warning("%s may not be opened by this user: the container runtime is not queried", socket)
            self._forbidden = True
            return []
        except CallError as error:
            return [Sight(NAME, "", "runtime", str(error), looks=_LOOKS)]
        codes = {RUNTIME_READY: "runtime", NETWORK_READY: "network"}
        return [
            Sight(NAME, "", codes[each.kind], each.message or "not ready", looks=_LOOKS)
            for each in conditions if each.kind in codes and not each.holds
        ]  # fmt: skip

    def _place(self, path: str) -> Path:
        return self._root / path.lstrip("/")


def pleg_age_s(metrics: str, now_s: float) -> float | None:
    """Return how long ago the kubelet's last pod relist was; None if not known."""
    match = _PLEG.search(metrics)
    try:
        last_s = float(match[1]) if match else 0.0
    except ValueError:
        return None
    return now_s - last_s if 0 < last_s < float("inf") else None


def make(setup: Setup) -> KubeletCheck | None:
    """Create the check if the node has a kubelet.

    Raises:
        ValueError: a setting is wrong.
    """
    options = setup.options_as(Options)
    for url in (options.healthz_url, options.metrics_url):
        if url:
            check_url(url)
    return KubeletCheck(setup, options) if (setup.host.root / "var/lib/kubelet").exists() else None
