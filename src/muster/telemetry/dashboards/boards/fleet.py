"""The dashboard of the fleet: what the GPUs do, and which part of Muster to look at next."""

from __future__ import annotations

from typing import Final

from muster.telemetry.dashboards.dashboard import Dashboard, Row
from muster.telemetry.dashboards.expressions import OURS, led, or_zero, rate, replicated, series, share
from muster.telemetry.dashboards.panel import bad_from, graph, stat

_GPUS: Final = led("muster_scheduler_gpus")

FLEET: Final = Dashboard(
    name="fleet",
    title="Fleet",
    description="What the GPUs do now, which nodes and jobs need attention, and whether Muster itself works.",
    rows=(
        Row(
            "Now",
            (
                stat(
                    "GPUs in use",
                    "Share of all GPUs that pods have. If it is low while gangs wait, open the scheduler's dashboard.",
                    share(led("muster_scheduler_gpus", matchers=('state="used"',)), _GPUS),
                    "percentunit",
                    alerts=("MusterGangsWaitWithIdleGpus",),
                ),
                stat(
                    "Unusable GPUs",
                    "Share of all GPUs on nodes that take no pods: not ready, cordoned, in quarantine or not tested.",
                    share(led("muster_scheduler_gpus", matchers=('state="unusable"',)), _GPUS),
                    "percentunit",
                    bad_from(0.02, 0.05),
                    alerts=("MusterUnhealthyNodes",),
                ),
                stat(
                    "Running jobs",
                    "Training jobs whose attempt runs.",
                    replicated("muster_trainingjob_jobs", matchers=('phase="Running"',)),
                ),
                stat(
                    "Waiting gangs",
                    "Gangs without nodes, for any reason.",
                    led("muster_scheduler_waiting_gangs"),
                ),
                stat(
                    "Nodes that need an operator",
                    "Nodes that remediation could not repair. Each has a NodeRemediation that says why.",
                    led("muster_remediation_nodes", matchers=('phase="NeedsOperator"',)),
                    steps=bad_from(1),
                    alerts=("MusterNodesNeedOperator",),
                ),
                stat(
                    "Processes down",
                    "Processes of Muster that Prometheus cannot scrape.",
                    or_zero(f"count({series('up', OURS)} == 0)"),
                    steps=bad_from(1),
                    alerts=("MusterTargetsDown",),
                ),
            ),
        ),
        Row(
            "GPUs",
            (
                graph(
                    "GPUs by state",
                    "GPUs of all nodes. Unusable ones are on nodes that are not ready, cordoned, in quarantine "
                    "or not tested.",
                    (led("muster_scheduler_gpus", "state"), "{{state}}"),
                    stacked=True,
                ),
                graph(
                    "Idle GPUs while gangs wait",
                    "Average number of GPUs that were idle although gangs with GPUs waited, by the reason why "
                    "no gang used them.",
                    (
                        or_zero(rate(series("muster_scheduler_idle_while_waiting_gpu_seconds_total"), "reason")),
                        "{{reason}}",
                    ),
                    stacked=True,
                    alerts=("MusterGangsWaitWithIdleGpus",),
                ),
                graph(
                    "Jobs by phase",
                    "Training jobs that are not finished, by phase.",
                    (
                        replicated("muster_trainingjob_jobs", "phase", matchers=('phase!~"Succeeded|Failed"',)),
                        "{{phase}}",
                    ),
                    stacked=True,
                ),
            ),
        ),
        Row(
            "Nodes",
            (
                graph(
                    "Nodes with a remediation",
                    "Nodes that remediation takes out of use, repairs or tests, by rung. Empty rungs are left out.",
                    (or_zero(f"{led('muster_remediation_nodes', 'rung')} > 0"), "{{rung}}"),
                    stacked=True,
                    alerts=("MusterUnhealthyNodes",),
                ),
                graph(
                    "Nodes with GPUs by state of their tests",
                    "Only trusted nodes take jobs if tests are required.",
                    (led("muster_preflight_nodes", "state"), "{{state}}"),
                    stacked=True,
                    alerts=("MusterPreflightsFail",),
                ),
                graph(
                    "Nodes that join",
                    "New nodes that are not ready, ready nodes that wait to be opened, and how many may be "
                    "opened in a period.",
                    (led("muster_joins_coming_nodes"), "not ready"),
                    (led("muster_joins_waiting_nodes"), "wait to be opened"),
                    (led("muster_joins_pace_nodes"), "pace"),
                    alerts=("MusterJoinsSlow",),
                ),
            ),
        ),
        Row(
            "Teams and pools",
            (
                graph(
                    "Nodes of teams",
                    "Nodes that each team owns, and nodes of its own that it uses. The difference is idle or lent.",
                    (led("muster_teams_nodes", "team", matchers=('count="owned"',)), "{{team}} owns"),
                    (led("muster_teams_nodes", "team", matchers=('count="used"',)), "{{team}} uses"),
                ),
                graph(
                    "Borrowed nodes",
                    "Nodes of other teams that a team borrows. Their owners get them back when they need them.",
                    (led("muster_teams_nodes", "team", matchers=('count="borrowed"',)), "{{team}}"),
                    stacked=True,
                ),
                graph(
                    "Problems of the allocation",
                    "Problems that an operator should look at, such as more nodes promised than there are.",
                    (led("muster_teams_cautions", "reason"), "{{reason}}"),
                    alerts=("MusterTeamsCautions",),
                ),
                graph(
                    "Nodes of scaled pools",
                    "Nodes by state, of pools that Muster scales. Empty states are left out.",
                    (or_zero(f"{led('muster_scaling_nodes', 'pool', 'state')} > 0"), "{{pool}} {{state}}"),
                    stacked=True,
                ),
                graph(
                    "Blocked pools and provider errors",
                    "Pools to which no requests are made because of a fault, and requests that a provider refused.",
                    (
                        or_zero(f"{led('muster_scaling_pool_blocked', 'pool', 'fault')} > 0"),
                        "{{pool}} blocked: {{fault}}",
                    ),
                    (
                        or_zero(rate(series("muster_scaling_provider_errors_total"), "pool", "fault")),
                        "{{pool}} {{fault}}/s",
                    ),
                    alerts=("MusterScalingBlocked",),
                ),
                graph(
                    "Balloons",
                    "Balloons that hold idle nodes of a pool ready, and those that wait for a node.",
                    (led("muster_balloons", "pool", matchers=('state="placed"',)), "{{pool}} placed"),
                    (led("muster_balloons", "pool", matchers=('state="waiting"',)), "{{pool}} waiting"),
                ),
                graph(
                    "Why balloons cannot use nodes",
                    "Nodes of pools with balloons, by whether a balloon can use them.",
                    (led("muster_balloon_nodes", "use"), "{{use}}"),
                    stacked=True,
                ),
                graph(
                    "Size of scaled pools",
                    "The size that Muster last requested for each pool.",
                    (led("muster_scaling_pool_size", "pool"), "{{pool}}"),
                ),
                graph(
                    "Gangs that need more nodes",
                    "Gangs that lack nodes, by what scaling does for them. Empty outcomes are left out.",
                    (or_zero(f"{led('muster_scaling_gangs', 'outcome')} > 0"), "{{outcome}}"),
                    stacked=True,
                ),
            ),
        ),
    ),
)
