"""The fields of a policy text; the JSON schema is generated from them."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from muster.fleet.health.policy import Action, Fault, Job

Seconds = Annotated[float, msgspec.Meta(gt=0, le=31_536_000, description="Seconds, a year at most.")]
Count = Annotated[int, msgspec.Meta(ge=1, le=1_000_000_000)]
Level = Annotated[int, msgspec.Meta(ge=0, le=3, description="A level of preflight; 0: the usual one.")]
Text = Annotated[str, msgspec.Meta(min_length=1, max_length=400)]
Name = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")]


class EntryText(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """The meaning of a code. `what`, `action` and `fault` are required unless the entry changes an existing one."""

    what: Text | None = None
    action: Action | None = None
    fault: Fault | None = None
    job: Job | None = None
    fatal: bool | None = None
    test: Level | None = None
    keep_s: Seconds | None = msgspec.field(default=None, name="keepSeconds")
    nvidia: str | None = None
    nvidia_then: str | None = None
    eks: str | None = None
    gpud: str | None = None
    azure: str | None = None


class BesideText(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Another finding of the check, within this many seconds before or after."""

    seconds: Seconds
    component: Literal["same", "other"] = "same"
    codes: list[str] = []


class RuleText(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """A rule over several findings. `why`, `action`, `fault` and `withinSeconds` are required in a new rule."""

    name: Name
    why: Text | None = None
    check: str | None = None
    codes: list[str] | None = None
    fatal: bool | None = None
    per: Literal["component", "node"] | None = None
    within_s: Seconds | None = msgspec.field(default=None, name="withinSeconds")
    incidents: Count | None = None
    events: Count | None = None
    components: Count | None = None
    remediations: Count | None = None
    beside: BesideText | None = None
    excuses: list[str] | None = None
    action: Action | None = None
    fault: Fault | None = None
    job: Job | None = None
    test: Level | None = None
    disabled: bool | None = None


class PoolText(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Changes for some nodes: the first pool that selects a node applies."""

    name: Name
    node_selector: dict[str, str]
    codes: dict[str, dict[str, EntryText]] = {}
    rules: list[RuleText] = []


class PolicyText(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """A health policy: the actions for findings on nodes."""

    version: Literal[1]
    revision: Text
    extends: Literal["default", "nothing"] = "default"
    unknown: EntryText | None = None
    codes: dict[str, dict[str, EntryText]] = {}
    rules: list[RuleText] = []
    pools: list[PoolText] = []
