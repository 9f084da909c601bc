"""RunHistory: run times of ended gangs, from which the scheduler predicts run times and starts."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, ClassVar, Final

from msgspec import Meta

from muster.api.names import GROUP, VERSION
from muster.kube.objects.meta import KubeObject, Resource
from muster.kube.objects.struct import KubeStruct

RUN_HISTORY: Final = "muster"
"""Name of the only object, in Muster's own namespace."""
RUNS_MAX: Final = 2000
"""Most ended gangs in the history. The oldest ones are dropped."""
BYTES_MAX: Final = 768 * 1024
"""Most bytes of the encoded object. The API server accepts 1.5 MB."""
TEXT_MAX: Final = 253
"""Longest text of a group. Longer names of images are cut."""
RUN_SECONDS_MAX: Final = 10**9
LATE_MAX: Final = 200
"""Most jobs that are remembered as late."""


class RecordedRun(KubeStruct):
    """One ended gang."""

    uid: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=TEXT_MAX,
            description="UID of the gang's object or of its pod. Each UID is recorded once.",
        ),
    ]
    run_seconds: Annotated[
        float, Meta(ge=0, le=RUN_SECONDS_MAX, description="How long the gang ran, in all its attempts together.")
    ]
    end_time: Annotated[datetime, Meta(description="When the gang ended.")]
    completed: Annotated[
        bool, Meta(description="Whether the gang ended by itself. Otherwise it would have run longer than it did.")
    ] = False


class RunGroup(KubeStruct):
    """Ended gangs that are alike."""

    namespace: Annotated[str, Meta(max_length=TEXT_MAX, description="Namespace of the gangs.")] = ""
    team: Annotated[str, Meta(max_length=TEXT_MAX, description="Team of the gangs; empty without one.")] = ""
    user: Annotated[str, Meta(max_length=TEXT_MAX, description="User who ran them; empty if unknown.")] = ""
    pattern: Annotated[
        str, Meta(max_length=TEXT_MAX, description="Their names without numbers and generated parts.")
    ] = ""
    image: Annotated[str, Meta(max_length=TEXT_MAX, description="Image of their first container.")] = ""
    nodes: Annotated[int, Meta(ge=0, description="Number of members of each gang.")] = 1
    gpus: Annotated[int, Meta(ge=0, description="GPUs of each member.")] = 0
    runs: Annotated[tuple[RecordedRun, ...], Meta(description="The gangs, the last to end comes last.")] = ()


class StartCalibration(KubeStruct, kw_only=True):
    """Corrections of the estimates of starts, learned from the first estimate of each job and its start."""

    lower: Annotated[float, Meta(ge=-7, le=7, description="Quantile of the earlier end of intervals, in log-odds.")]
    upper: Annotated[float, Meta(ge=-7, le=7, description="Quantile of the later end of intervals, in log-odds.")]
    outcomes: Annotated[int, Meta(ge=0, description="Number of estimates whose outcome is known.")] = 0
    held: Annotated[int, Meta(ge=0, description="How many of these jobs started within their interval.")] = 0
    late: Annotated[
        tuple[str, ...],
        Meta(
            max_length=LATE_MAX,
            description="UIDs of jobs that still wait after their interval. Their outcome is counted already.",
        ),
    ] = ()


class RunHistorySpec(KubeStruct):
    """The newest ended gangs, and how well earlier estimates of starts were met."""

    groups: Annotated[
        tuple[RunGroup, ...],
        Meta(description="Ended gangs by what they have in common; at most 2,000 gangs in all groups together."),
    ] = ()
    calibration: Annotated[
        StartCalibration | None,
        Meta(description="Corrections of the estimates of starts; absent before the first outcome."),
    ] = None


class RunHistory(KubeObject, kw_only=True):
    """Run times of ended gangs. There is one object, `muster` in Muster's own namespace, which only Muster writes.

    If the object is deleted, Muster starts a new history with the ended TrainingJobs that still exist.
    """

    RESOURCE: ClassVar[Resource] = Resource(
        group=GROUP, version=VERSION, plural="runhistories", kind="RunHistory", namespaced=True
    )

    spec: RunHistorySpec
