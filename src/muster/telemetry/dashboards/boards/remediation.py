"""The dashboard of broken nodes: found, taken out of use, repaired, tested."""

from __future__ import annotations

from typing import Final

from muster.telemetry.dashboards.dashboard import Dashboard, Row
from muster.telemetry.dashboards.expressions import grown, led, or_zero, quantile_of_range, rate, series, top
from muster.telemetry.dashboards.panel import bad_from, graph, ranked, stat

_STAGE: Final = series("muster_remediation_stage_seconds_bucket")
_TEST: Final = series("muster_preflight_test_seconds_bucket")
_AGENT: Final = 'job="agent"'

REMEDIATION: Final = Dashboard(
    name="remediation",
    title="Remediation",
    description="Which nodes are broken, what Muster does about them, what holds it back, and whether agents "
    "and tests work.",
    rows=(
        Row(
            "Now",
            (
                stat(
                    "Nodes with a remediation",
                    "Nodes with a session on any rung.",
                    led("muster_remediation_nodes"),
                    alerts=("MusterUnhealthyNodes",),
                ),
                stat(
                    "Nodes that need an operator",
                    "Muster has tried everything that it may. `kubectl get noderemediations` lists them.",
                    led("muster_remediation_nodes", matchers=('phase="NeedsOperator"',)),
                    steps=bad_from(1),
                    alerts=("MusterNodesNeedOperator",),
                ),
                stat(
                    "Held nodes",
                    "Nodes whose next step waits: for a limit, the breaker, or a shared fault.",
                    or_zero(led("muster_remediation_held_nodes")),
                    steps=bad_from(1, 10),
                    alerts=("MusterRemediationHeld",),
                ),
                stat(
                    "Nodes that failed their tests",
                    "Nodes with GPUs whose last test failed.",
                    led("muster_preflight_nodes", matchers=('state="Failed"',)),
                    steps=bad_from(1),
                    alerts=("MusterPreflightsFail",),
                ),
                stat(
                    "Slow GPUs",
                    "GPUs with a figure that is worse than those of GPUs of the same model.",
                    led("muster_preflight_outliers"),
                    steps=bad_from(1),
                ),
                stat(
                    "Configuration",
                    "Whether the ConfigMaps muster-health and muster-preflight have errors.",
                    f"{led('muster_remediation_config_broken')} + ({or_zero(led('muster_preflight_config_broken'))})",
                    steps=bad_from(1),
                    names={"0": "valid", "1": "errors", "2": "errors"},
                    alerts=("MusterConfigBroken",),
                ),
            ),
        ),
        Row(
            "Remediation",
            (
                graph(
                    "Nodes by rung",
                    "From Condition and Quarantine to Replace and Human. Empty rungs are left out.",
                    (or_zero(f"{led('muster_remediation_nodes', 'rung', 'phase')} > 0"), "{{rung}} {{phase}}"),
                    stacked=True,
                ),
                graph(
                    "Entered rungs",
                    "Rungs and states that sessions enter per hour.",
                    (
                        or_zero(f"3600 * {rate(series('muster_remediation_rungs_total'), 'rung', 'phase')}"),
                        "{{rung}} {{phase}}",
                    ),
                ),
                graph(
                    "Held nodes by reason",
                    "Why the next step of a node waits.",
                    (or_zero(led("muster_remediation_held_nodes", "reason")), "{{reason}}"),
                    stacked=True,
                    alerts=("MusterRemediationHeld",),
                ),
                ranked(
                    "Actions by outcome",
                    "Actions on nodes in the time range.",
                    or_zero(top(20, grown(series("muster_remediation_actions_total"), "action", "outcome"))),
                    "{{action}} {{outcome}}",
                    decimals=0,
                ),
                ranked(
                    "Duration of stages",
                    "Median time in the time range for each stage. The first one begins with the fault.",
                    f"sort({quantile_of_range(0.5, _STAGE, 'stage')})",
                    "{{stage}}",
                    "s",
                ),
                ranked(
                    "Slowest stages",
                    "9 of 10 of the stages that ended in the time range took at most this long.",
                    f"sort({quantile_of_range(0.9, _STAGE, 'stage')})",
                    "{{stage}}",
                    "s",
                ),
            ),
        ),
        Row(
            "Tests of nodes",
            (
                graph(
                    "Nodes by state of their tests",
                    "Nodes with GPUs.",
                    (led("muster_preflight_nodes", "state"), "{{state}}"),
                    stacked=True,
                    alerts=("MusterPreflightsFail",),
                ),
                ranked(
                    "Tests by outcome",
                    "Tests that ended in the time range.",
                    or_zero(grown(series("muster_preflight_tests_total"), "level", "outcome")),
                    "level {{level}} {{outcome}}",
                    decimals=0,
                ),
                ranked(
                    "Duration of tests",
                    "9 of 10 tests that ended in the time range took at most this long.",
                    quantile_of_range(0.9, _TEST, "level"),
                    "level {{level}}",
                    "s",
                ),
            ),
        ),
        Row(
            "Agents of nodes",
            (
                graph(
                    "Agents and findings",
                    "Agents that Prometheus scrapes, and findings that they hold.",
                    (f"count({series('up', _AGENT)} == 1)", "agents"),
                    (f"sum({series('muster_agent_findings')})", "findings"),
                    alerts=("MusterAgentsMissing",),
                ),
                ranked(
                    "Checks by outcome",
                    "Calls of checks per second, now. Anything but ok means that a check cannot see its part "
                    "of the node.",
                    top(20, rate(series("muster_agent_looks_total"), "check", "outcome")),
                    "{{check}} {{outcome}}",
                    "ops",
                    alerts=("MusterAgentChecksFail",),
                ),
                ranked(
                    "Writes of findings",
                    "Writes of NodeHealth objects in the time range, by outcome.",
                    grown(series("muster_agent_writes_total"), "outcome"),
                    "{{outcome}}",
                    decimals=0,
                    alerts=("MusterFindingsNotWritten",),
                ),
                ranked(
                    "Slowest loops of agents",
                    "Longest time since a loop of an agent made progress.",
                    top(10, f"max by (loop, instance) ({series('muster_progress_age_seconds', _AGENT)})"),
                    "{{instance}} {{loop}}",
                    "s",
                    width=12,
                    alerts=("MusterLoopStalled",),
                ),
                ranked(
                    "Nodes with most findings",
                    "`kubectl get nodehealths` shows the findings.",
                    top(10, f"max by (instance) ({series('muster_agent_findings')})"),
                    "{{instance}}",
                    width=12,
                ),
            ),
        ),
    ),
)
