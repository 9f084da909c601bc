"""The dashboard of the scheduler."""

from __future__ import annotations

from typing import Final

from muster.telemetry.dashboards.dashboard import Dashboard, Row
from muster.telemetry.dashboards.expressions import grown, led, or_zero, quantile, rate, series
from muster.telemetry.dashboards.panel import bad_from, graph, ranked, stat

_PLAN: Final = series("muster_scheduler_plan_duration_seconds_bucket")
_BINDS: Final = series("muster_scheduler_binds_total")
_FAILED_BINDS: Final = series("muster_scheduler_binds_total", 'outcome!="bound"')
_DELAY: Final = series("muster_scheduler_backfill_delay_seconds_bucket")

SCHEDULER: Final = Dashboard(
    name="scheduler",
    title="Scheduler",
    description="Which gangs wait and why, what the first one needs, and whether the scheduler keeps up.",
    rows=(
        Row(
            "Now",
            (
                stat(
                    "Waiting gangs",
                    "Gangs without nodes. `muster explain JOB` says what one of them waits for.",
                    led("muster_scheduler_waiting_gangs"),
                ),
                stat(
                    "Free GPUs",
                    "GPUs that a pod can have now. Free GPUs while gangs wait are explained below.",
                    led("muster_scheduler_gpus", matchers=('state="free"',)),
                ),
                stat(
                    "Age of the last plan",
                    "The scheduler plans at least every few seconds.",
                    f"time() - {led('muster_scheduler_last_plan_timestamp_seconds')}",
                    "s",
                    bad_from(30, 120),
                    alerts=("MusterSchedulerNotPlanning",),
                ),
                stat(
                    "Failed binds",
                    "Binds in the time range that were refused or failed. The scheduler places the gang again.",
                    or_zero(grown(_FAILED_BINDS)),
                    steps=bad_from(1, 100),
                    decimals=0,
                    alerts=("MusterPlacementsFail",),
                ),
                stat(
                    "Released gangs",
                    "Gangs in the time range whose nodes were released, because they were not bound in time.",
                    grown(series("muster_scheduler_releases_total")),
                    steps=bad_from(1, 5),
                    decimals=0,
                    alerts=("MusterPlacementsFail",),
                ),
                stat(
                    "Configuration",
                    "Whether the ConfigMap muster-scheduler has errors. The last valid one stays in force.",
                    led("muster_scheduler_config_broken"),
                    steps=bad_from(1),
                    names={"0": "valid", "1": "errors"},
                    alerts=("MusterConfigBroken",),
                ),
            ),
        ),
        Row(
            "The queue",
            (
                graph(
                    "Waiting gangs by reason",
                    "Reasons are those of `muster explain`. Empty reasons are left out.",
                    (or_zero(f"{led('muster_scheduler_waiting_gangs', 'reason')} > 0"), "{{reason}}"),
                    stacked=True,
                ),
                ranked(
                    "Nodes for the first waiting gang",
                    "Nodes by the reason why the first gang that waits for nodes can or cannot use them. Empty "
                    "if none waits.",
                    or_zero(f"{led('muster_scheduler_nodes', 'reason')} > 0"),
                    "{{reason}}",
                ),
                graph(
                    "Idle GPUs while gangs wait",
                    "Average number of idle GPUs, by reason. Fragmented: too little of each node is free. "
                    "Constraint: selectors or teams exclude the node.",
                    (
                        or_zero(rate(series("muster_scheduler_idle_while_waiting_gpu_seconds_total"), "reason")),
                        "{{reason}}",
                    ),
                    stacked=True,
                    alerts=("MusterGangsWaitWithIdleGpus",),
                ),
            ),
        ),
        Row(
            "Plans and writes",
            (
                graph(
                    "Duration of a plan",
                    "CPU time of a plan of the whole cluster.",
                    (quantile(0.5, _PLAN), "median"),
                    (quantile(0.99, _PLAN), "99 of 100"),
                    unit="s",
                ),
                graph(
                    "Binds by outcome",
                    "Requests that bind a pod to a node.",
                    (rate(_BINDS, "outcome"), "{{outcome}}"),
                    unit="ops",
                    alerts=("MusterPlacementsFail",),
                ),
                graph(
                    "Writes of Placements",
                    "By operation and outcome. Placements are the decisions of the scheduler in the API server.",
                    (
                        rate(series("muster_scheduler_placement_writes_total"), "operation", "outcome"),
                        "{{operation}} {{outcome}}",
                    ),
                    unit="ops",
                    alerts=("MusterPlacementsFail",),
                ),
            ),
        ),
        Row(
            "Preemption, backfill and teams",
            (
                graph(
                    "Evictions",
                    "Evictions for gangs of higher priority, and dry runs of them, by outcome.",
                    (
                        or_zero(rate(series("muster_scheduler_evictions_total"), "operation", "outcome")),
                        "{{operation}} {{outcome}}",
                    ),
                    unit="ops",
                ),
                graph(
                    "Backfilled GPUs",
                    "Average number of GPUs of gangs that run on nodes reserved for others.",
                    (rate(series("muster_scheduler_backfilled_gpu_seconds_total")), "backfilled"),
                ),
                graph(
                    "Delays by backfill",
                    "How much later gangs started because backfilled gangs were on their nodes, and requests to leave.",
                    (f"{quantile(0.9, _DELAY)} >= 0 or vector(0)", "delay of 9 of 10, seconds"),
                    (rate(series("muster_scheduler_backfill_asks_total")), "requests to leave per second"),
                ),
                graph(
                    "Nodes of teams",
                    "As the scheduler counts them: owned, used by the team, lent and borrowed.",
                    (led("muster_scheduler_team_nodes", "team", "state"), "{{team}} {{state}}"),
                ),
                graph(
                    "Actions in shadow mode",
                    "What the scheduler would do, if shadow mode is on.",
                    (or_zero(rate(series("muster_scheduler_shadow_actions_total"), "action")), "{{action}}"),
                    unit="ops",
                ),
            ),
        ),
    ),
)
