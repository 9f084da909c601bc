"""Alerts about the network of nodes."""

from __future__ import annotations

from typing import Final

from muster.telemetry.alerts.alert import Alert, RuleFile
from muster.telemetry.alerts.expressions import lines
from muster.telemetry.alerts.targets import missing

_ADD: Final = 'muster_network_cni_request_seconds_count{{command="ADD"{}}}'

NETWORK: Final = RuleFile(
    "network",
    (
        missing("network"),
        Alert(
            name="MusterNodeAddressesShort",
            expr=lines("""
                count by (cluster, reason) (muster_network_addresses_short{reason!~"Warming|Cooling"} == 1)
            """),
            for_s=600,
            severity="warning",
            summary="{{ $value }} nodes have too few free addresses for pods: {{ $labels.reason }}.",
        ),
        Alert(
            name="MusterAddressProblems",
            expr="count by (cluster, problem) (muster_network_address_problems > 0)",
            for_s=1800,
            severity="warning",
            summary="On {{ $value }} nodes, records of addresses differ from what exists: {{ $labels.problem }}.",
        ),
        Alert(
            name="MusterCniFails",
            expr=lines(f"""
                count by (cluster) (muster_network_cni_ready == 0)
                or sum by (cluster) (rate({_ADD.format(', result="failed"')}[10m]))
                / sum by (cluster) (rate({_ADD.format("")}[10m])) > $cniFailedShare
            """),
            for_s=300,
            severity="critical",
            summary="New pods get no network on some nodes.",
        ),
        Alert(
            name="MusterTrafficNotCounted",
            expr=lines("""
                count by (cluster) (
                  muster_network_ledger_damaged == 1
                  or increase(muster_network_counters_lost_total[30m]) > 0
                  or increase(muster_network_traffic_failures_total[30m]) > 3
                )
            """),
            for_s=0,
            severity="warning",
            summary="{{ $value }} nodes lose figures about traffic.",
        ),
        Alert(
            name="MusterUplinkWithoutHub",
            expr=lines("""
                count by (cluster) (muster_network_uplink_source{source=~"decay|static"} == 1)
                / count by (cluster) (muster_network_uplink_source) > $uplinkAloneShare
            """),
            for_s=300,
            severity="warning",
            summary="{{ $value | humanizePercentage }} of the nodes limit traffic without the hub's allotment.",
        ),
        Alert(
            name="MusterNetworkAgentFails",
            expr=lines("""
                count by (cluster) (
                  muster_network_tuning_problems > 0
                  or increase(muster_network_pods_save_failures_total[30m]) > 0
                  or increase(muster_network_uplink_errors_total[30m]) > 10
                )
            """),
            for_s=600,
            severity="warning",
            summary="The network agents of {{ $value }} nodes cannot set the kernel or save their state.",
        ),
    ),
)
