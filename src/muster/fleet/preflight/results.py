"""Reads the result of a test from its pod: a record for the node, or why there is none."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from muster.api.names import LABEL_BALLOON, LABEL_PREFLIGHT
from muster.api.preflight import FAILURES_MAX, GPUS_MAX, GpuFigures, PreflightFailure, PreflightSpec
from muster.api.trust import Identity
from muster.fleet.preflight.snapshot import End, TestView
from muster.fleet.preflight.testpod import ANNOTATION_TEST, CONTAINER, TestRecord
from muster.gputest.codes import Code
from muster.gputest.summary import Summary, read
from muster.kube.objects.container import ContainerStateTerminated, ContainerStatus
from muster.kube.objects.pod import Pod

_WORDS_MAX = 300


def read_test(pod: Pod) -> TestView | None:
    """Return the pod as a test; None if we did not create it as one."""
    try:
        made_for = msgspec.json.decode(pod.metadata.annotations.get(ANNOTATION_TEST, ""), type=TestRecord)
    except msgspec.DecodeError:
        return None
    status = _container(pod)
    state = status.state if status is not None else None
    started = None
    if state is not None:
        started = state.running.started_at if state.running is not None else None
        started = state.terminated.started_at if state.terminated is not None else started
    made = pod.metadata.creation_timestamp
    return TestView(
        name=pod.name,
        uid=pod.uid,
        node=made_for.node,
        identity=Identity(made_for.node_uid, made_for.boot_id),
        level=made_for.level,
        retest=pod.metadata.labels.get(LABEL_BALLOON) == "true",
        made_at=_seconds(made),
        bound=bool(pod.spec.node_name),
        started_at=_seconds(started),
        leaving=pod.terminating,
        made_with=made_for.made_with,
        end=judge(pod, made_for, state.terminated if state is not None else None) if pod.finished else None,
    )


def judge(pod: Pod, made_for: TestRecord, ended: ContainerStateTerminated | None) -> End:
    """Return the result of a finished test.

    Causes outside the node do not give a result: a pod that was refused, evicted or never started, or an image
    without the needed software. If a test was stopped at its deadline and has no result, it hung, and counts as
    failed.
    """
    if pod.metadata.labels.get(LABEL_PREFLIGHT) is None or pod.spec.node_name not in ("", made_for.node):
        return End(None, f"it ran on node {pod.spec.node_name}")
    if ended is None or ended.started_at is None:
        reason, message = (ended.reason, ended.message) if ended is not None else ("", "")
        said = _words(pod.status.reason or reason, pod.status.message or message)
        return End(None, f"it did not start: {said}")
    at = ended.finished_at or ended.started_at
    try:
        result = read(ended.message)
    except ValueError:
        if pod.status.reason == "DeadlineExceeded":
            return End(hung(made_for, at, "the test did not end in time, and was stopped"))
        return End(None, f"it ended with {ended.exit_code} and no result: {_words(ended.reason, ended.message)}")
    if result.injected:
        return End(None, f"it was a drill: {result.injected}")
    lacks = next((each.message for each in result.failures if each.code == Code.NOT_INSTALLED), None)
    if lacks is not None:
        return End(None, f"its pod lacks what tests need: {lacks}")
    if result.backend.partition(":")[0] != made_for.backend.partition(":")[0]:
        return End(None, f"it used back end {result.backend}, not {made_for.backend}")
    if result.level < made_for.level:
        return End(None, f"it was of level {result.level}, not {made_for.level}")
    return End(_record(made_for, result, at, passed=result.passed and ended.exit_code == 0))


def hung(made_for: TestRecord, at: datetime, message: str) -> PreflightSpec:
    """Return the record of a test that never ended."""
    failure = PreflightFailure(test="all", code=Code.HUNG.value, message=message)
    return PreflightSpec(
        node_uid=made_for.node_uid,
        boot_id=made_for.boot_id,
        level=made_for.level,
        passed=False,
        time=at,
        failures=(failure,),
    )


def _record(made_for: TestRecord, said: Summary, at: datetime, *, passed: bool) -> PreflightSpec:
    uuids = [gpu.uuid for gpu in said.gpus]
    failures = tuple(
        PreflightFailure(
            test=each.test,
            code=each.code,
            gpu=uuids[each.gpu] if 0 <= each.gpu < len(uuids) else "",
            message=each.message,
        )
        for each in said.failures[:FAILURES_MAX]
    )
    if not passed and not failures:
        failures = (PreflightFailure(test="all", code=Code.CRASHED.value, message="it failed without saying why"),)
    return PreflightSpec(
        node_uid=made_for.node_uid,
        boot_id=made_for.boot_id,
        driver=said.versions.get("driver", ""),
        level=min(3, said.level),
        passed=passed,
        time=at,
        versions={**said.versions, "backend": said.backend},
        figures=tuple(
            GpuFigures(
                uuid=gpu.uuid,
                name=said.models[gpu.model] if 0 <= gpu.model < len(said.models) else "",
                pci_address=gpu.pci_address,
                figures={
                    name: value for name, value in zip(said.names, gpu.figures, strict=False) if value is not None
                },
            )
            for gpu in said.gpus[:GPUS_MAX]
        ),
        failures=failures,
    )


def _container(pod: Pod) -> ContainerStatus | None:
    return next((each for each in pod.status.container_statuses if each.name == CONTAINER), None)


def _words(reason: str, message: str) -> str:
    said = ": ".join(filter(None, (reason, " ".join(message.split())[-_WORDS_MAX:])))
    return said or "no reason was given"


def _seconds(time: datetime | None) -> float:
    return time.astimezone(UTC).timestamp() if time is not None else 0.0
