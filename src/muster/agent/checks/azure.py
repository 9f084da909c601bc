"""Reads Azure's Scheduled Events: learn.microsoft.com/azure/virtual-machines/linux/scheduled-events.

A document has the events of all machines of a scale set or availability set; only those that name this machine count.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from muster.agent.checks.cloud import Kind, Notice, NoticeError
from muster.agent.checks.http import Answer, HttpError, get
from muster.kube.smallfiles import text_of

ADDRESS: Final = "http://169.254.169.254"
_EVENTS: Final = "/metadata/scheduledevents?api-version=2020-07-01"
_NAME: Final = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
_HEADERS: Final = {"Metadata": "true"}
_KINDS: Final[dict[str, Kind]] = {
    "Freeze": "freeze", "Reboot": "reboot", "Redeploy": "redeploy", "Preempt": "preempt", "Terminate": "terminate",
}  # fmt: skip
_OVER: Final = ("Completed", "Canceled")
_CHASSIS: Final = "7783-7084-3265-9085-8269-3286-77"
"""The chassis asset tag of Azure's machines."""


class _Event(msgspec.Struct, rename="pascal"):
    event_id: str
    event_type: str
    resources: list[str] = []
    event_status: str = ""
    not_before: str | None = ""
    description: str | None = ""
    event_source: str | None = ""
    duration_in_seconds: int | None = -1


class _Document(msgspec.Struct, rename="pascal"):
    document_incarnation: int
    events: list[Any] = []


class AzureEvents:
    """The notices for one Azure machine.

    Args:
        address: of the metadata service.
        machine: its name; empty to ask the service once.
    """

    def __init__(self, address: str, machine: str) -> None:
        self._address, self._machine = address, machine

    def notices(self, timeout_s: float) -> Sequence[Notice]:
        """Return the notices for this machine.

        Raises:
            NoticeError: the service does not give a valid answer.
        """
        if not self._machine:
            self._machine = self._get(_NAME, timeout_s).text.strip()
        body = self._get(_EVENTS, timeout_s).body
        try:
            document = msgspec.json.decode(body, type=_Document)
        except msgspec.DecodeError as error:
            raise NoticeError(f"{self._address}{_EVENTS}: {error}") from error
        return notices_of(document.events, self._machine)

    def _get(self, path: str, timeout_s: float) -> Answer:
        try:
            answer = get(self._address + path, timeout_s, _HEADERS)
        except HttpError as error:
            raise NoticeError(str(error)) from error
        if answer.status != 200 or not answer.body:
            raise NoticeError(f"{self._address}{path}: status {answer.status}, {len(answer.body)} bytes")
        return answer


def notices_of(events: Sequence[Any], machine: str) -> list[Notice]:
    """Return the notices for one machine. An event that cannot be parsed counts as one of an unknown kind."""
    found = []
    for number, raw in enumerate(events):
        try:
            event = msgspec.convert(raw, _Event)
        except msgspec.ValidationError as error:
            found.append(Notice(f"event {number}", "unknown", f"it cannot be read: {error}"))
            continue
        if machine.lower() not in [name.lower() for name in event.resources] or event.event_status in _OVER:
            continue
        when = "now" if event.event_status == "Started" else f"not before {event.not_before or 'soon'}"
        lasts = event.duration_in_seconds
        parts = [f"{event.event_type} {when}", f"for {lasts} s" if lasts is not None and lasts >= 0 else ""]
        parts += [f"by {event.event_source}" if event.event_source else "", event.description or ""]
        kind = _KINDS.get(event.event_type, "unknown")
        found.append(Notice(event.event_id, kind, ", ".join(part for part in parts if part)))
    return found


def is_azure(sys: Path) -> bool:
    """Return whether the machine's firmware identifies it as Azure's."""
    return text_of(sys / "class/dmi/id/chassis_asset_tag") == _CHASSIS
