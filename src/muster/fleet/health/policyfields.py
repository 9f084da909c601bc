"""The fields of a policy as people write them; the JSON schema is made of these."""

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
    """What a code means. `what`, `action` and `fault` have to be there unless the entry changes one below."""

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
    """Another finding of the check, so many seconds before or after at most."""

    seconds: Seconds
    component: Literal["same", "other"] = "same"
    codes: list[str] = []


class RuleText(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """What follows from several findings. `why`, `action`, `fault` and `withinSeconds` are needed in a new one."""

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
    """What is different for some nodes: those of the first pool that selects them."""

    name: Name
    node_selector: dict[str, str]
    codes: dict[str, dict[str, EntryText]] = {}
    rules: list[RuleText] = []


class PolicyText(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """What is done about what is seen on nodes."""

    version: Literal[1]
    revision: Text
    extends: Literal["default", "nothing"] = "default"
    unknown: EntryText | None = None
    codes: dict[str, dict[str, EntryText]] = {}
    rules: list[RuleText] = []
    pools: list[PoolText] = []
