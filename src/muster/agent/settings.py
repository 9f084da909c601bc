"""How the agent is set up: agent.json of the ConfigMap muster-health."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta

Seconds = Annotated[float, Meta(gt=0, le=86400)]

PERIOD_S: Final = 5.0
HEARTBEAT_S: Final = 300.0


class SettingsError(Exception):
    """The settings cannot be used. The message says what to change."""


class CheckSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One check.

    Attributes:
        enabled: whether it is made at all.
        period_seconds, timeout_seconds: instead of its own.
        options: its own settings.
    """

    enabled: bool = True
    period_seconds: Seconds | None = None
    timeout_seconds: Seconds | None = None
    options: msgspec.Raw = msgspec.field(default_factory=lambda: msgspec.Raw(b"{}"))


class AgentSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """All of it. Fields that are not known are ignored: settings may be newer than the agent.

    Attributes:
        policy_version: revision of the policy that goes with these settings, for the record.
        period_seconds: at most one request to the API server in it.
        heartbeat_seconds: written at least so often.
        checks: by name; those that are not named run as they are.
    """

    policy_version: str = ""
    period_seconds: Seconds = PERIOD_S
    heartbeat_seconds: Seconds = HEARTBEAT_S
    checks: dict[str, CheckSettings] = msgspec.field(default_factory=dict)


def load_settings(path: Path | None) -> AgentSettings:
    """Read the file; the defaults where there is none.

    Raises:
        SettingsError: it cannot be read or is wrong.
    """
    if path is None:
        return AgentSettings()
    try:
        return msgspec.json.decode(path.read_bytes(), type=AgentSettings)
    except FileNotFoundError:
        return AgentSettings()
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise SettingsError(f"{path}: {error}") from error
