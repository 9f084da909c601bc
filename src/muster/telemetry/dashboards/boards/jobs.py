"""The dashboard of jobs and of the time to useful work after a fault."""

from __future__ import annotations

from typing import Final

from muster.telemetry.dashboards.dashboard import Dashboard, Row
from muster.telemetry.dashboards.expressions import (
    grown,
    or_zero,
    quantile,
    quantile_of_range,
    rate,
    replicated,
    series,
    top,
)
from muster.telemetry.dashboards.panel import bad_from, graph, ranked, stat

_USEFUL: Final = series("muster_trainingjob_time_to_useful_seconds_bucket")
_STAGES: Final = series("muster_trainingjob_restart_stage_seconds_bucket")
_FAULTS: Final = series("muster_trainingjob_faults_total")
_BLOCKED: Final = series("muster_trainingjob_checkpoint_blocked_seconds_bucket")
_UPLOAD: Final = series("muster_trainingjob_checkpoint_upload_seconds_bucket")
_WRITES: Final = series("muster_trainingjob_api_writes_per_fault_bucket")
_DECIDE: Final = series("muster_trainingjob_decide_duration_seconds_bucket")


def _phase(phase: str) -> str:
    return replicated("muster_trainingjob_jobs", matchers=(f'phase="{phase}"',))


JOBS: Final = Dashboard(
    name="jobs",
    title="Jobs and time to useful",
    description="Whether jobs make progress, how often they fail and why, and how long it takes until a job "
    "that had a fault does its next step.",
    rows=(
        Row(
            "Now",
            (
                stat("Running", "Jobs whose attempt runs.", _phase("Running")),
                stat(
                    "Restarting",
                    "Jobs between a fault and the next attempt. If a job stays here, `muster status JOB` says why.",
                    _phase("Restarting"),
                ),
                stat(
                    "Stalled",
                    "Jobs that hold their GPUs and report no steps. `muster stacks JOB` shows where ranks wait.",
                    replicated("muster_trainingjob_stalled"),
                    steps=bad_from(1),
                    alerts=("MusterJobsStalled",),
                ),
                stat(
                    "Faults",
                    "Faults of jobs in the time range.",
                    or_zero(grown(_FAULTS)),
                    decimals=0,
                    alerts=("MusterJobFaultsRepeat",),
                ),
                stat(
                    "Time to useful, median",
                    "Half of the faults in the time range took at most this long until the first later step.",
                    quantile_of_range(0.5, _USEFUL),
                    "s",
                    bad_from(60, 300),
                    alerts=("MusterTimeToUsefulHigh",),
                ),
                stat(
                    "Time to useful, 9 of 10",
                    "9 of 10 faults in the time range took at most this long until the first later step.",
                    quantile_of_range(0.9, _USEFUL),
                    "s",
                    bad_from(120, 600),
                    alerts=("MusterTimeToUsefulHigh",),
                ),
            ),
        ),
        Row(
            "Jobs and faults",
            (
                graph(
                    "Jobs by phase",
                    "All training jobs of the cluster.",
                    (replicated("muster_trainingjob_jobs", "phase"), "{{phase}}"),
                    stacked=True,
                ),
                graph(
                    "Faults by cause",
                    "Faults per second, by whose fault it was: the user's, the infrastructure's, or not known.",
                    (or_zero(rate(_FAULTS, "cause")), "{{cause}}"),
                    unit="cps",
                    stacked=True,
                ),
                ranked(
                    "Faults by rule",
                    "Faults in the time range, by the rule that found the cause. docs/whose-fault.md describes "
                    "the rules.",
                    or_zero(top(12, grown(_FAULTS, "rule"))),
                    "{{rule}}",
                    decimals=0,
                ),
            ),
        ),
        Row(
            "From a fault to useful work",
            (
                graph(
                    "Time to useful",
                    "Time from a fault to the first later step. Gaps are times without faults.",
                    (quantile(0.5, _USEFUL), "median"),
                    (quantile(0.9, _USEFUL), "9 of 10"),
                    unit="s",
                    alerts=("MusterTimeToUsefulHigh",),
                ),
                ranked(
                    "Stages of restarts",
                    "Median time in the time range from a fault to the end of each stage. The stage after a "
                    "long gap is the slow one.",
                    f"sort({quantile_of_range(0.5, _STAGES, 'stage')})",
                    "{{stage}}",
                    "s",
                ),
                graph(
                    "Writes of a job's status per fault",
                    "Writes to the API server from a fault to useful work. More than 5 is unusual.",
                    (quantile(0.5, _WRITES), "median"),
                    (quantile(0.99, _WRITES), "99 of 100"),
                ),
            ),
        ),
        Row(
            "Progress and checkpoints",
            (
                graph(
                    "Stalls",
                    "Jobs that are stalled now, and stalls that begin per hour.",
                    (replicated("muster_trainingjob_stalled"), "stalled"),
                    (f"3600 * {rate(series('muster_trainingjob_stalls_total'))}", "begin per hour"),
                    alerts=("MusterJobsStalled",),
                ),
                graph(
                    "Training stopped by checkpoints",
                    "Time for which the save of a checkpoint stopped the training.",
                    (quantile(0.5, _BLOCKED), "median"),
                    (quantile(0.99, _BLOCKED), "99 of 100"),
                    unit="s",
                ),
                graph(
                    "Upload of checkpoints",
                    "Time in which the shards of a checkpoint reached the store. The training runs meanwhile.",
                    (quantile(0.5, _UPLOAD), "median"),
                    (quantile(0.99, _UPLOAD), "99 of 100"),
                    unit="s",
                ),
                graph(
                    "Lost checkpoints",
                    "Checkpoints per hour that could not be saved, and confirmed ones that ranks could not restore.",
                    (f"3600 * {rate(series('muster_trainingjob_checkpoints_not_saved_total'))}", "not saved"),
                    (
                        or_zero(f"3600 * {rate(series('muster_trainingjob_checkpoints_quarantined_total'), 'reason')}"),
                        "not restored: {{reason}}",
                    ),
                    alerts=("MusterCheckpointsNotSaved", "MusterCheckpointsQuarantined"),
                ),
                graph(
                    "Restored bytes",
                    "Bytes of checkpoints that attempts restore, by where the nodes read them. The bucket is "
                    "the slowest.",
                    (or_zero(rate(series("muster_trainingjob_restored_bytes_total"), "source")), "{{source}}"),
                    unit="Bps",
                    stacked=True,
                ),
            ),
        ),
        Row(
            "The controller of jobs",
            (
                graph(
                    "Actions",
                    "What the controller does, by kind of action.",
                    (rate(series("muster_trainingjob_actions_total"), "action"), "{{action}}"),
                    unit="ops",
                ),
                graph(
                    "Supervisors",
                    "Supervisors that the leader knows, and their open long polls. A supervisor without a poll "
                    "for long is lost.",
                    (replicated("muster_trainingjob_members"), "known"),
                    (replicated("muster_trainingjob_open_polls"), "open polls"),
                ),
                graph(
                    "Duration of a decision",
                    "CPU time of a decision about one job.",
                    (quantile(0.5, _DECIDE), "median"),
                    (quantile(0.99, _DECIDE), "99 of 100"),
                    unit="s",
                ),
            ),
        ),
    ),
)
