"""NodeRemediation: the remediation of one node, from the finding that opens it to the test that closes it."""

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
"""The value of `phase` for each `RemediationState`. Versions without the field `state` read `phase`."""
HeldBy = Literal["Budget", "Breaker", "Spare", "Silent", "Passed", "Observed"]
"""What delays the next rung; `NodeRemediationStatus.held_by` describes each."""
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
    "ReplaceRequested",
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
    """The newest request of an operator."""

    action: Annotated[
        RequestedAction,
        Meta(
            description="Quarantine: take the node out of use until Release is requested. Release: return it to use "
            "after a passed test."
        ),
    ]
    by: Annotated[str, Meta(min_length=1, max_length=128, description="User name of the operator.")]
    time: Annotated[
        datetime, Meta(description="When the request was made. A test that ended earlier does not release the node.")
    ]
    reason: Annotated[str, Meta(min_length=1, max_length=512, description="Reason for the request.")]


class NodeRemediationSpec(KubeStruct, kw_only=True):
    """The node, and why this remediation was opened."""

    node: Annotated[str, Meta(min_length=1, description="Name of the node.")]
    node_uid: Annotated[
        str, Meta(min_length=1, description="UID of the node; a recreated node of the same name has another.")
    ] = field(name="nodeUID")
    cause: Annotated[
        tuple[ObservedFinding, ...], Meta(max_length=CAUSES_MAX, description="The findings that opened it.")
    ] = ()
    request: Annotated[RemediationRequest | None, Meta(description="The newest request of an operator.")] = None


class RemediationStep(KubeStruct):
    """An entry of the history: a rung was entered, or an action was taken on it, and why."""

    rung: Annotated[Rung, Meta(description="The rung.")]
    time: Annotated[datetime, Meta(description="When this happened.")]
    generation: Annotated[int, Meta(ge=0, description="Generation of the status that recorded this.")] = 0
    reason: Annotated[
        str, Meta(max_length=256, description="The reason as text: the line of the policy, a deadline or a test.")
    ] = ""
    event: Annotated[
        str | None,
        Meta(
            description="What the entry records. Opened: the session was opened. Entered: the rung was entered."
            " Joining: a node that was not in use yet entered Quarantine. Requested: a user asked for Quarantine."
            " SharedFault: many nodes have the fault at once. SpareReserved: a spare node is reserved for a gang."
            " Emptied: all pods that must leave the node are gone. Reset: the GPUs were reset. RebootRequested: a"
            " reboot was requested. Booted: the machine has booted again. ReplaceRequested: the provider is asked to"
            " replace the machine. Released: the session was closed."
        ),
    ] = None
    fault_key: Annotated[
        str,
        Meta(
            max_length=256,
            description="CHECK/CODE of the finding that decided; `dead` if the controller found the node dead.",
        ),
    ] = ""
    boot_id: Annotated[str, Meta(description="RebootRequested: ID of the boot before the reboot.")] = field(
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
        Meta(description="The same as state, for older versions of Muster. Handed means NeedsOperator."),
    ] = None
    rung: Annotated[Rung, Meta(description="The present rung of the ladder.")] = "Observe"
    generation: Annotated[
        int,
        Meta(
            ge=0,
            description="Increases by one at each change, so that a controller with an outdated status cannot write.",
        ),
    ] = 0
    since: Annotated[datetime | None, Meta(description="When the rung was entered.")] = None
    deadline: Annotated[
        datetime | None, Meta(description="Deadline of the rung; after it the controller takes the next rung.")
    ] = None
    history: Annotated[
        tuple[RemediationStep, ...], Meta(max_length=HISTORY_MAX, description="History, oldest entry first.")
    ] = ()
    message: Annotated[str, Meta(description="What the controller does or waits for, as text.")] = ""
    held_by: Annotated[
        str | None,
        Meta(
            description="What delays the next rung. Budget, Breaker: a limit of the configuration."
            " Spare: a gang waits for a spare node. Silent: the node may still be booting. Passed: its newest test was"
            " passed. Observed: the configuration does not allow the controller to act."
        ),
    ] = None
    pool: Annotated[
        str | None,
        Meta(description="Pool of the node when the rung was entered. Breakers count the node there if it is deleted."),
    ] = None
    test_level: Annotated[
        int | None, Meta(description="Level of the test that the node must pass to return to use; 0: the usual level.")
    ] = None
    silent_since: Annotated[
        datetime | None,
        Meta(
            description="If the controller found the node dead: when the node's Lease was last renewed. The node "
            "counts as dead until its Lease is renewed."
        ),
    ] = None
    passes: Annotated[
        tuple[PassedTest, ...],
        Meta(
            max_length=PASSES_MAX,
            description="Passed tests that cleared findings, oldest first. They stay valid if the node's Preflight "
            "changes or is deleted.",
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
