"""Settings of the agent: key agent.json of the ConfigMap muster-health."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta

Seconds = Annotated[float, Meta(gt=0, le=86400)]

PERIOD_S: Final = 5.0
HEARTBEAT_S: Final = 300.0


class SettingsError(Exception):
    """The settings are not valid. The message says what to change."""


class CheckSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The settings of one check.

    Attributes:
        enabled: whether it is created.
        period_seconds, timeout_seconds: override its defaults.
        options: other settings of the check.
    """

    enabled: bool = True
    period_seconds: Seconds | None = None
    timeout_seconds: Seconds | None = None
    options: msgspec.Raw = msgspec.field(default_factory=lambda: msgspec.Raw(b"{}"))


class AgentSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The settings of the agent. Unknown fields are ignored, because settings may be newer than the agent.

    Attributes:
        policy_version: revision of the policy that belongs to these settings.
        period_seconds: at most one request to the API server per period.
        heartbeat_seconds: the longest time between two writes.
        checks: by name; checks without an entry run with their defaults.
    """

    policy_version: str = ""
    period_seconds: Seconds = PERIOD_S
    heartbeat_seconds: Seconds = HEARTBEAT_S
    checks: dict[str, CheckSettings] = msgspec.field(default_factory=dict)


def load_settings(path: Path | None) -> AgentSettings:
    """Read the settings; defaults without a file.

    Raises:
        SettingsError: the file cannot be read or is not valid.
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
