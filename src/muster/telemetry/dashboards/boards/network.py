"""The dashboard of the nodes' network: traffic, the uplink's budget, addresses of pods."""

from __future__ import annotations

from typing import Final

from muster.telemetry.dashboards.dashboard import CLUSTER, JOB, NAMESPACE, Dashboard, Row
from muster.telemetry.dashboards.expressions import led, or_zero, quantile, rate, series, top, traffic
from muster.telemetry.dashboards.panel import bad_from, graph, ranked, stat

_AGENT: Final = 'job="network"'
_ADD: Final = 'command="ADD"'
_READY: Final = series("muster_network_cni_ready")
_SHORT: Final = series("muster_network_addresses_short", 'reason!~"Warming|Cooling"')
_CNI: Final = series("muster_network_cni_request_seconds_bucket", _ADD)


def _hub(figure: str, *by: str) -> str:
    return led(f"muster_uplink_{figure}_bits_per_second", *by)


def _node(figure: str) -> str:
    return f"sum by (direction) ({series(f'muster_network_uplink_{figure}')})"


NETWORK: Final = Dashboard(
    name="network",
    title="Network",
    description="Who uses the uplink, whether its budget holds, and whether pods get addresses.",
    variables=(CLUSTER, NAMESPACE, JOB),
    rows=(
        Row(
            "Now",
            (
                stat(
                    "Network agents",
                    "Agents that Prometheus scrapes.",
                    f"count({series('up', _AGENT)} == 1)",
                    alerts=("MusterAgentsMissing",),
                ),
                stat(
                    "Agents without the API server",
                    "Agents that have not heard from the API server for 5 minutes, or never. They work on with "
                    "what they know.",
                    or_zero(
                        f"count({series('muster_network_api_contact_age_seconds')} > 300 "
                        f"or {series('muster_network_api_contact_age_seconds')} < 0)"
                    ),
                    steps=bad_from(1, 50),
                    alerts=("MusterNetworkAgentFails",),
                ),
                stat(
                    "Nodes without a pod network",
                    "Nodes whose new pods get no network.",
                    f"count({_READY} == 0) or 0 * count({_READY})",
                    steps=bad_from(1),
                    alerts=("MusterCniFails",),
                ),
                stat(
                    "Nodes short of addresses",
                    "Nodes with fewer free addresses than they should have, except those that fill up now.",
                    or_zero(f"count({_SHORT} == 1)"),
                    steps=bad_from(1),
                    alerts=("MusterNodeAddressesShort",),
                ),
                stat(
                    "Use of the uplink's budget",
                    "Sum of the limits of connected nodes, as a share of the budget.",
                    f"max({_hub('allotted', 'direction')} / {_hub('budget', 'direction')})",
                    "percentunit",
                    most=1,
                ),
                stat(
                    "Pods that exceed their limits",
                    "Pods that do not slow down when packets are dropped. Others lose their share to them.",
                    f"sum({series('muster_network_uplink_unresponsive_pods')})",
                    steps=bad_from(1),
                ),
            ),
        ),
        Row(
            "Traffic",
            (
                graph(
                    "Uplinks of all nodes",
                    "Bytes per second that the uplinks' interfaces counted.",
                    (rate(series("muster_network_nic_bytes_total"), "direction"), "{{direction}}"),
                    unit="Bps",
                ),
                ranked(
                    "Jobs with most internet traffic",
                    "Bytes per second in both directions, now. `muster network top` shows the same without Prometheus.",
                    top(
                        15,
                        rate(
                            traffic("muster_network_bytes_total", 'class="internet"', 'job=~"$jobname"'),
                            "namespace",
                            "job",
                        ),
                    ),
                    "{{namespace}} {{job}}",
                    "Bps",
                ),
                ranked(
                    "Nodes with most traffic",
                    "Bytes per second of the uplink's interfaces, now.",
                    top(15, rate(series("muster_network_nic_bytes_total"), "instance")),
                    "{{instance}}",
                    "Bps",
                ),
                ranked(
                    "Traffic by class",
                    "Bytes per second, now.",
                    rate(traffic("muster_network_bytes_total", 'job=~"$jobname"'), "class", "direction"),
                    "{{class}} {{direction}}",
                    "Bps",
                ),
                ranked(
                    "Traffic by team",
                    "Bytes per second to and from the internet, now.",
                    top(15, rate(traffic("muster_network_bytes_total", 'class="internet"'), "team", "direction")),
                    "{{team}} {{direction}}",
                    "Bps",
                ),
                ranked(
                    "Packets by class",
                    "IP packets per second, now.",
                    rate(traffic("muster_network_packets_total", 'job=~"$jobname"'), "class", "direction"),
                    "{{class}} {{direction}}",
                    "pps",
                ),
                ranked(
                    "Pods with most internet traffic",
                    "Bytes per second, now. Only with `traffic.pods`.",
                    or_zero(
                        top(
                            15,
                            rate(
                                traffic("muster_network_pod_bytes_total", 'class="internet"', 'job=~"$jobname"'),
                                "namespace",
                                "pod",
                            ),
                        )
                    ),
                    "{{namespace}} {{pod}}",
                    "Bps",
                ),
                graph(
                    "What is not counted exactly",
                    "Host-network pods whose cgroup is not known, and jobs and pods without series of their own.",
                    (f"sum({series('muster_network_uncounted_pods')})", "unknown cgroup"),
                    (f"sum({series('muster_network_accounts_over_limit')})", "over the limit of series"),
                    alerts=("MusterTrafficNotCounted",),
                ),
                graph(
                    "Faults of counting",
                    "Failed readings, counters that another program removed, and damaged ledgers.",
                    (rate(series("muster_network_traffic_failures_total")), "failed readings/s"),
                    (rate(series("muster_network_counters_lost_total")), "lost counters/s"),
                    (f"sum({series('muster_network_ledger_damaged')})", "damaged ledgers"),
                    alerts=("MusterTrafficNotCounted",),
                ),
            ),
        ),
        Row(
            "The uplink's budget",
            (
                graph(
                    "Download: budget and demand",
                    "Bits per second. If nodes want more than the budget, it is shared.",
                    *(
                        (led(f"muster_uplink_{each}_bits_per_second", matchers=('direction="in"',)), each)
                        for each in ("budget", "wanted", "allotted", "away", "unresponsive")
                    ),
                    unit="bps",
                ),
                graph(
                    "Upload: budget and demand",
                    "Bits per second. If nodes want more than the budget, it is shared.",
                    *(
                        (led(f"muster_uplink_{each}_bits_per_second", matchers=('direction="out"',)), each)
                        for each in ("budget", "wanted", "allotted", "away", "unresponsive")
                    ),
                    unit="bps",
                ),
                graph(
                    "What teams may use",
                    "Sum of the limits of a team's pods, download.",
                    (
                        or_zero(led("muster_uplink_team_bits_per_second", "team", matchers=('direction="in"',))),
                        "{{team}}",
                    ),
                    unit="bps",
                    stacked=True,
                ),
                graph(
                    "The hub",
                    "Connected agents, messages with new rates, and connections that ended or were refused, "
                    "per second.",
                    (led("muster_uplink_connections"), "connected agents"),
                    (rate(series("muster_uplink_rates_sent_total")), "rates sent/s"),
                    (or_zero(rate(series("muster_uplink_dropped_total"), "reason")), "ended: {{reason}}/s"),
                    (or_zero(rate(series("muster_uplink_refused_total"), "reason")), "refused: {{reason}}/s"),
                    alerts=("MusterUplinkWithoutHub",),
                ),
                graph(
                    "The allocator",
                    "CPU time of the last plan, and 1 while a new leader has not heard enough nodes.",
                    (led("muster_uplink_plan_seconds"), "plan, seconds"),
                    (led("muster_uplink_warming"), "warming"),
                ),
                graph(
                    "Nodes by where their limits come from",
                    "lease: from the hub. decay and static: without the hub. dryRun: limits are not enforced.",
                    (f"sum by (source) ({series('muster_network_uplink_source')})", "{{source}}"),
                    stacked=True,
                    alerts=("MusterUplinkWithoutHub",),
                ),
                graph(
                    "Limits, demand and use on nodes",
                    "Sums over all nodes.",
                    (_node("limit_bits_per_second"), "limit {{direction}}"),
                    (_node("demand_bits_per_second"), "demand {{direction}}"),
                    (_node("used_bits_per_second"), "use {{direction}}"),
                    unit="bps",
                ),
                graph(
                    "Waiting bytes and dropped packets",
                    "Bytes that wait at limits, packets that present pods lost there, and passes that could "
                    "not set limits.",
                    (_node("backlog_bytes"), "waiting bytes {{direction}}"),
                    (_node("dropped_packets"), "dropped packets {{direction}}"),
                    (rate(series("muster_network_uplink_errors_total")), "failed passes/s"),
                ),
            ),
        ),
        Row(
            "Addresses of pods",
            (
                graph(
                    "Addresses by state",
                    "Addresses that nodes hold for pods.",
                    (f"sum by (state) ({series('muster_network_addresses')})", "{{state}}"),
                    stacked=True,
                ),
                ranked(
                    "Nodes short of addresses, by reason",
                    "Now. Warming and Cooling pass by themselves.",
                    or_zero(f"sum by (reason) ({series('muster_network_addresses_short')}) > 0"),
                    "{{reason}}",
                    alerts=("MusterNodeAddressesShort",),
                ),
                graph(
                    "Differences of addresses",
                    "Differences between store, runtime, kernel and provider, and leaked attachments that were "
                    "freed per hour. See `muster network leaks`.",
                    (f"sum by (problem) ({series('muster_network_address_problems')})", "{{problem}}"),
                    (f"3600 * {rate(series('muster_network_addresses_freed_total'))}", "freed per hour"),
                    alerts=("MusterAddressProblems",),
                ),
                ranked(
                    "Duration of ADD",
                    "99 of 100 requests to the CNI plugin in the last 10 minutes took at most this long. A pod "
                    "waits for it.",
                    quantile(0.99, _CNI, "command", window="10m"),
                    "{{command}}",
                    "s",
                ),
                graph(
                    "CNI requests by result",
                    "Requests of the container runtime.",
                    (
                        rate(series("muster_network_cni_request_seconds_count"), "command", "result"),
                        "{{command}} {{result}}",
                    ),
                    unit="reqps",
                    alerts=("MusterCniFails",),
                ),
                graph(
                    "Pods and kernel settings",
                    "Pods that agents know, kernel settings that they changed, and those that they could not.",
                    (f"sum({series('muster_network_pods')})", "pods"),
                    (f"sum({series('muster_network_tuning_settings')})", "settings"),
                    (f"sum({series('muster_network_tuning_problems')})", "problems of settings"),
                    (rate(series("muster_network_pods_save_failures_total")), "failed saves of pods/s"),
                    alerts=("MusterNetworkAgentFails",),
                ),
            ),
        ),
    ),
)
