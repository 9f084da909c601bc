"""NodeRemediation: what is being done about one node, from the finding that opened it to the test that closes it."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, ClassVar, Final, Literal

from msgspec import Meta, field
from msgspec.structs import force_setattr

from muster.api.names import GROUP, VERSION
from muster.api.node_health import ObservedFinding
from muster.api.preflight import PassedTest
from muster.api.untyped_steps import typed
from muster.kube.objects.meta import KubeObject, Resource
from muster.kube.objects.struct import KubeStruct

Rung = Literal["Observe", "Condition", "Quarantine", "Drain", "ResetGPU", "Reboot", "Replace", "Human"]
RemediationState = Literal["Open", "Released", "NeedsOperator"]
RemediationPhase = Literal["Open", "Released", "Handed"]
"""Words of `RemediationState` in versions without `state`, which cannot read others."""
HeldBy = Literal["Budget", "Breaker", "Spare", "Silent", "Passed", "Observed"]
"""What keeps the next rung from being entered; `NodeRemediationStatus.held_by` describes each."""
RequestedAction = Literal["Quarantine", "Release"]
StepEvent = Literal[
    "Opened",
    "Entered",
    "Joining",
    "Requested",
    "SharedFault",
    "SpareReserved",
    "Emptied",
    "Reset",
    "RebootRequested",
    "Booted",
    "Released",
]
"""What a history entry records; `RemediationStep.event` describes each."""

_STATES: Final[dict[RemediationPhase | None, RemediationState]] = {
    None: "Open",
    "Open": "Open",
    "Released": "Released",
    "Handed": "NeedsOperator",
}
_PHASES: Final[dict[str, RemediationPhase]] = {state: phase for phase, state in _STATES.items() if phase is not None}

CAUSES_MAX: Final = 16
HISTORY_MAX: Final = 32
PASSES_MAX: Final = 8


class RemediationRequest(KubeStruct, kw_only=True):
    """A person's request; the newest one counts."""

    action: Annotated[
        RequestedAction,
        Meta(description="Quarantine: out of use until Release is asked for. Release: back after a test is passed."),
    ]
    by: Annotated[str, Meta(min_length=1, max_length=128, description="Who asked.")]
    time: Annotated[datetime, Meta(description="When; a test that ended before it does not release the node.")]
    reason: Annotated[str, Meta(min_length=1, max_length=512, description="What for.")]


class NodeRemediationSpec(KubeStruct, kw_only=True):
    """The node, and what opened this."""

    node: Annotated[str, Meta(min_length=1, description="Name of the node.")]
    node_uid: Annotated[
        str, Meta(min_length=1, description="Its UID; a recreated node of the same name has another.")
    ] = field(name="nodeUID")
    cause: Annotated[
        tuple[ObservedFinding, ...], Meta(max_length=CAUSES_MAX, description="The findings that opened it.")
    ] = ()
    request: Annotated[RemediationRequest | None, Meta(description="What a person asked for last.")] = None


class RemediationStep(KubeStruct):
    """A rung that was entered, or something that was done on it, and why."""

    rung: Annotated[Rung, Meta(description="The rung.")]
    time: Annotated[datetime, Meta(description="When it was entered.")]
    generation: Annotated[int, Meta(ge=0, description="Generation of the status that entered it.")] = 0
    reason: Annotated[
        str, Meta(max_length=256, description="Why, for people: the line of the policy, a deadline, a test.")
    ] = ""
    event: Annotated[
        str | None,
        Meta(
            description="What the entry records. Opened: the session was opened. Entered: the rung was entered."
            " Joining: a node that was not in use yet entered Quarantine. Requested: a user asked for Quarantine."
            " SharedFault: many nodes have the fault at once. SpareReserved: a spare node is reserved for a gang."
            " Emptied: all pods that must leave the node are gone. Reset: the GPUs were reset. RebootRequested: a"
            " reboot was requested. Booted: the machine has booted again. Released: the session was closed."
        ),
    ] = None
    fault_key: Annotated[
        str,
        Meta(
            max_length=256, description="CHECK/CODE of the finding that decided; dead for a node that was found dead."
        ),
    ] = ""
    boot_id: Annotated[str, Meta(description="RebootRequested: the boot that the reboot is to end.")] = field(
        name="bootID", default=""
    )
    test_level: Annotated[
        int | None, Meta(description="Released: level of the passed test that ended the session.")
    ] = None
    tested_at: Annotated[datetime | None, Meta(description="Released: when that test ended.")] = None
    by: Annotated[str, Meta(max_length=128, description="Requested, Released: the user who asked for it.")] = ""

    def __post_init__(self) -> None:
        """Set the typed fields of an entry that a version without them wrote."""
        if self.event is None:
            for name, value in typed(self.reason).items():
                force_setattr(self, name, value)


class NodeRemediationStatus(KubeStruct):
    """The progress of a remediation."""

    state: Annotated[
        str | None,
        Meta(
            description="Open: the controller works on the node. Released: the node is back in use. NeedsOperator: the"
            " controller does nothing more, and an operator must repair the node."
        ),
    ] = None
    phase: Annotated[
        RemediationPhase | None,
        Meta(description="The same for versions without state: Handed stands for NeedsOperator."),
    ] = None
    rung: Annotated[Rung, Meta(description="The rung of the ladder it is on.")] = "Observe"
    generation: Annotated[int, Meta(ge=0, description="One more at each change: fences writers.")] = 0
    since: Annotated[datetime | None, Meta(description="When the rung was entered.")] = None
    deadline: Annotated[datetime | None, Meta(description="When the rung is given up.")] = None
    history: Annotated[
        tuple[RemediationStep, ...], Meta(max_length=HISTORY_MAX, description="Rungs entered, oldest first.")
    ] = ()
    message: Annotated[str, Meta(description="What it does or waits for, for people.")] = ""
    held_by: Annotated[
        str | None,
        Meta(
            description="What keeps the next rung from being entered. Budget, Breaker: a limit of the configuration."
            " Spare: a gang waits for a spare node. Silent: the node may still be booting. Passed: its newest test was"
            " passed. Observed: the configuration does not allow the controller to act."
        ),
    ] = None
    pool: Annotated[
        str | None,
        Meta(description="Pool of the node when the rung was entered: breakers count it there after it is gone."),
    ] = None
    test_level: Annotated[
        int | None, Meta(description="Level of the test that lets the node back; 0: the usual one.")
    ] = None
    silent_since: Annotated[
        datetime | None,
        Meta(
            description="If the node was found dead: when its Lease was renewed last. It counts as dead until its Lease"
            " is renewed."
        ),
    ] = None
    passes: Annotated[
        tuple[PassedTest, ...],
        Meta(
            max_length=PASSES_MAX,
            description="Passed tests that cleared findings, oldest first. They hold after another result has replaced"
            " the node's Preflight, or it was deleted.",
        ),
    ] = ()

    def __post_init__(self) -> None:
        """Read `phase` where a version without `state` wrote the status; write it for such a version."""
        if self.state is None:
            force_setattr(self, "state", _STATES[self.phase])
        force_setattr(self, "phase", _PHASES.get(self.state or "", "Open"))


class NodeRemediation(KubeObject, kw_only=True):
    """The remediation of one node, from its cause until the node is in use again or needs an operator."""

    RESOURCE: ClassVar[Resource] = Resource(
        group=GROUP, version=VERSION, plural="noderemediations", kind="NodeRemediation", namespaced=False
    )

    spec: NodeRemediationSpec
    status: NodeRemediationStatus = field(default_factory=NodeRemediationStatus)
