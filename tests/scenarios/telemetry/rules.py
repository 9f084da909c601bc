"""Rules for a real Prometheus with short waits, and the alerts of them that fire."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

from muster.telemetry.alerts.alerts import FILES, rule_file
from tests.support.prometheus import Prometheus
from tests.support.waiting import LONG_TIMEOUT_S, eventually

AS_SHIPPED: Final = "shipped"
"""The rules with their default thresholds."""
TIGHT: Final = "tight"
"""The rules with thresholds that a fault exceeds within seconds."""

_TIGHT: Final = {
    "apiErrorsShare": 0.001,
    "bindsFailedShare": 0.0,
    "checkpointsNotSaved": 0.0,
    "gangsReleased": 0.0,
    "findingsUnwrittenSeconds": 2.0,
    "idleGpus": 0.001,
    "queueOldestSeconds": 1.0,
    "readCacheStaleSeconds": 4.0,
    "restartsPerHour": 0.0,
    "schedulerStaleSeconds": 8.0,
    "timeToUsefulSeconds": 0.01,
    "agentsMissingShare": 0.97,
}


def write_rules(folder: Path, thresholds: Mapping[str, float] | None = None) -> list[Path]:
    """Write both sets of rules; `thresholds` replace those of the tight set."""
    written = []
    sets = {AS_SHIPPED: {"agentsMissingShare": 0.97}, TIGHT: {**_TIGHT, **(thresholds or {})}}
    for name, values in sets.items():
        for file in FILES:
            path = folder / f"{name}-{file.name}.yaml"
            text = rule_file(file, for_s=1, thresholds=values, labels={"set": name})
            path.write_text(text.replace(f"name: muster-{file.name}", f"name: {name}-{file.name}"))
            written.append(path)
    return written


def firing(server: Prometheus, name: str, **labels: str) -> set[str]:
    """Names of the alerts of a set that fire with these labels."""
    alerts = server.get("/api/v1/alerts")["alerts"]
    wanted = {**labels, "set": name}.items()
    return {
        each["labels"]["alertname"] for each in alerts if each["state"] == "firing" and wanted <= each["labels"].items()
    }


class Expected:
    """Alerts that a test declares with `@pytest.mark.fires`, and those of them that have not fired yet.

    Args:
        names: of the alerts.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self.names = frozenset(names)
        self.missing = set(self.names)

    def until_firing(
        self, server: Prometheus, *names: str, meanwhile: Callable[[], object] | None = None, **labels: str
    ) -> None:
        """Wait until each alert fires in the set with tight thresholds.

        Args:
            server: that evaluates the rules.
            names: of the alerts; without them, all that have not fired yet.
            meanwhile: repeats the fault.
            labels: of the alerts.

        Raises:
            ValueError: the test does not declare one of the names.
        """
        if undeclared := set(names) - self.names:
            raise ValueError(f"@pytest.mark.fires does not name {sorted(undeclared)}")
        waiting = set(names or self.missing)

        def fired() -> bool:
            if meanwhile is not None:
                meanwhile()
            seen = waiting & firing(server, TIGHT, **labels)
            waiting.difference_update(seen)
            self.missing.difference_update(seen)
            return not waiting

        try:
            eventually("alerts fire", fired, LONG_TIMEOUT_S)
        except AssertionError as error:
            others = sorted(firing(server, TIGHT))
            raise AssertionError(f"{error}: {sorted(waiting)} did not fire; {others} do") from None
