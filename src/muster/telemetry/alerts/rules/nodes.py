"""Alerts about nodes: agents, remediation, preflight, joins, scaling, teams."""

from __future__ import annotations

from typing import Final

from muster.telemetry.alerts.alert import Alert, RuleFile
from muster.telemetry.alerts.expressions import agents_up, lines, of_leader
from muster.telemetry.alerts.targets import missing

_NODES: Final = 'max by (cluster) (muster_informer_objects{job="controller", resource="nodes"})'

HEALTH: Final = RuleFile(
    "health",
    (
        Alert(
            name="MusterUnhealthyNodes",
            expr=lines(f"""
                sum by (cluster) {of_leader("muster_remediation_nodes")}
                / {_NODES} > $unhealthyNodesShare
            """),
            for_s=900,
            severity="critical",
            summary="{{ $value | humanizePercentage }} of the nodes have faults that remediation works on.",
        ),
        Alert(
            name="MusterRemediationHeld",
            expr=lines(f"""
                max by (cluster, reason) {of_leader('muster_remediation_held_nodes{reason=~"Budget|Breaker"}')} > 0
            """),
            for_s=1800,
            severity="warning",
            summary="{{ $value }} nodes wait for their next repair, stopped by this limit: {{ $labels.reason }}.",
        ),
        Alert(
            name="MusterNodesNeedOperator",
            expr=lines(f"""
                sum by (cluster) {of_leader('muster_remediation_nodes{phase="NeedsOperator"}')}
                / {_NODES} > $operatorNodesShare
            """),
            for_s=3600,
            severity="info",
            summary="{{ $value | humanizePercentage }} of the nodes are out of use until an operator repairs them.",
        ),
        missing("agent"),
        Alert(
            name="MusterAgentsMissing",
            expr=f"1 - {agents_up('agent')}\n/ {_NODES} > $agentsMissingShare",
            for_s=900,
            severity="warning",
            summary="{{ $value | humanizePercentage }} of the nodes have no running agent, so their faults go unseen.",
        ),
        Alert(
            name="MusterFindingsNotWritten",
            expr=lines(f"""
                count by (cluster) (muster_agent_writes_failing_seconds > $findingsUnwrittenSeconds
                ) / {agents_up("agent")} > $agentsFailingShare
            """),
            for_s=600,
            severity="warning",
            summary="{{ $value | humanizePercentage }} of the agents cannot write what they found.",
        ),
        Alert(
            name="MusterAgentChecksFail",
            expr=lines(f"""
                count by (cluster, check) (
                  sum by (cluster, instance, check) (rate(muster_agent_looks_total{{outcome!="ok"}}[15m]))
                  / sum by (cluster, instance, check) (rate(muster_agent_looks_total[15m])) > 0.5
                ) / on (cluster) group_left () {agents_up("agent")} > $agentsFailingShare
            """),
            for_s=900,
            severity="warning",
            summary="The check {{ $labels.check }} fails on {{ $value | humanizePercentage }} of the nodes.",
        ),
    ),
)

PREFLIGHT: Final = RuleFile(
    "preflight",
    (
        Alert(
            name="MusterPreflightsFail",
            expr=lines("""
                sum by (cluster, level) (increase(muster_preflight_tests_total{outcome!="passed"}[2h]))
                / sum by (cluster, level) (increase(muster_preflight_tests_total[2h])) > $preflightFailedShare
            """),
            for_s=600,
            severity="warning",
            summary="{{ $value | humanizePercentage }} of the tests of level {{ $labels.level }} were not passed.",
        ),
    ),
)

JOINS: Final = RuleFile(
    "joins",
    (
        Alert(
            name="MusterJoinsSlow",
            expr=f"max by (cluster) {of_leader('muster_joins_waiting_nodes')} > 0",
            for_s=3600,
            severity="warning",
            summary="{{ $value }} nodes are Ready but not yet opened to pods, and some node has waited all the time.",
        ),
    ),
)

SCALING: Final = RuleFile(
    "scaling",
    (
        Alert(
            name="MusterScalingBlocked",
            expr=f"max by (cluster, pool, fault) {of_leader('muster_scaling_pool_blocked')} == 1",
            for_s=1800,
            severity="warning",
            summary="The pool {{ $labels.pool }} gets no nodes: {{ $labels.fault }}.",
        ),
    ),
)

TEAMS: Final = RuleFile(
    "teams",
    (
        Alert(
            name="MusterTeamsCautions",
            expr=f"max by (cluster, reason) {of_leader('muster_teams_cautions')} > 0",
            for_s=3600,
            severity="info",
            summary="Nodes are not with the teams as allocated: {{ $labels.reason }} ({{ $value }}).",
        ),
        missing("admission"),
        Alert(
            name="MusterAdmissionFails",
            expr=lines("""
                sum by (cluster, outcome) (rate(muster_admission_requests_total{outcome=~"unknown|malformed"}[10m])) > 0
            """),
            for_s=600,
            severity="warning",
            summary="The webhook cannot fill in pods: {{ $labels.outcome }}.",
        ),
    ),
)
