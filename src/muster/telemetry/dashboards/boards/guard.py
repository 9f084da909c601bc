"""The dashboard of the guard before Prometheus."""

from __future__ import annotations

from typing import Final

from muster.telemetry.dashboards.dashboard import Dashboard, Row
from muster.telemetry.dashboards.expressions import (
    grown,
    or_zero,
    quantile,
    quantile_of_range,
    rate,
    series,
    share,
    top,
)
from muster.telemetry.dashboards.panel import bad_from, graph, ranked, stat

_REQUESTS: Final = series("muster_guard_requests_total")
_REFUSALS: Final = series("muster_guard_refusals_total", 'allowed="false"')
_FAILED: Final = series("muster_guard_requests_total", 'outcome=~"unreachable|timeout|broken|error"')
_DURATION: Final = series("muster_guard_request_duration_seconds_bucket")
_ADDED: Final = series("muster_guard_added_seconds_bucket")
_WAIT: Final = series("muster_guard_budget_wait_seconds_bucket")

GUARD: Final = Dashboard(
    name="guard",
    title="Guard",
    description="Who asks Prometheus for how much, what the guard refuses, and what it costs in time.",
    rows=(
        Row(
            "Now",
            (
                stat("Requests", "Requests of all callers per second.", or_zero(rate(_REQUESTS)), "reqps"),
                stat(
                    "Refused requests",
                    "Share of the requests in the time range that were too dear, or exceeded a budget.",
                    share(or_zero(grown(_REFUSALS)), or_zero(grown(_REQUESTS))),
                    "percentunit",
                    bad_from(0.05, 0.2),
                    alerts=("MusterGuardRefuses", "MusterGuardWithoutPrice"),
                ),
                stat(
                    "Failed requests",
                    "Share of the requests in the time range that Prometheus or the guard did not answer.",
                    share(
                        or_zero(grown(_FAILED)),
                        or_zero(grown(_REQUESTS)),
                    ),
                    "percentunit",
                    bad_from(0.05, 0.2),
                    alerts=("MusterGuardWithoutUpstream",),
                ),
                stat(
                    "Added time, 99 of 100",
                    "Time until a request was sent to Prometheus, without waiting for a budget.",
                    quantile_of_range(0.99, _ADDED),
                    "s",
                    bad_from(0.05, 1),
                ),
                stat(
                    "Configuration",
                    "Whether guard.yaml, or a file that `callers` names, cannot be used. An older one is in use then.",
                    f"max({series('muster_guard_config_problem')})",
                    steps=bad_from(1),
                    names={"0": "in use", "1": "errors"},
                    alerts=("MusterGuardConfigBroken",),
                ),
                stat(
                    "Upstream files",
                    "Whether the token or the certificates for Prometheus cannot be used. Older ones are in use then, "
                    "until they expire.",
                    f"max by (files) ({series('muster_guard_upstream_files_problem')})",
                    steps=bad_from(1),
                    names={"0": "in use", "1": "errors"},
                    alerts=("MusterGuardUpstreamFilesBroken",),
                    legend="{{files}}",
                ),
            ),
        ),
        Row(
            "Callers",
            (
                graph(
                    "Requests by outcome",
                    "Requests that ended, by outcome.",
                    (or_zero(rate(_REQUESTS, "outcome")), "{{outcome}}"),
                    unit="reqps",
                    stacked=True,
                ),
                graph(
                    "Requests by caller",
                    "The ten callers with most requests.",
                    (or_zero(top(10, rate(_REQUESTS, "caller"))), "{{caller}}"),
                    unit="reqps",
                ),
                ranked(
                    "Refusals",
                    "Requests in the time range that were too dear, by caller and reason. With `allowed`, they "
                    "were answered: in a dry run, or without a price.",
                    or_zero(top(15, grown(series("muster_guard_refusals_total"), "caller", "reason", "allowed"))),
                    "{{caller}} {{reason}} allowed={{allowed}}",
                    decimals=0,
                ),
                graph(
                    "Callers that are not known",
                    "Requests that were refused because their caller was not known, and those that were not "
                    "valid HTTP.",
                    (or_zero(rate(series("muster_guard_unidentified_requests_total"), "reason")), "{{reason}}"),
                    (rate(series("muster_guard_invalid_requests_total")), "not valid HTTP"),
                    unit="reqps",
                ),
                graph(
                    "Connections and queries in the log",
                    "Open connections, callers whose use is kept, and queries in the log of the dearest "
                    "(/guard/dearest).",
                    (f"sum({series('muster_guard_connections')})", "connections"),
                    (f"sum({series('muster_guard_callers')})", "callers"),
                    (f"sum({series('muster_guard_dearest_queries')})", "queries in the log"),
                ),
                graph(
                    "Modes",
                    "1 in a dry run, where nothing is refused; and per hour, new configurations, tokens and "
                    "certificates.",
                    (f"max({series('muster_guard_dry_run')})", "dry run"),
                    (f"3600 * {rate(series('muster_guard_config_reloads_total'))}", "new configurations per hour"),
                    (
                        f"3600 * {rate(series('muster_guard_upstream_files_reloads_total'), 'files')}",
                        "new {{files}} per hour",
                    ),
                ),
            ),
        ),
        Row(
            "Budgets",
            (
                graph(
                    "Cost that runs",
                    "Cost of the requests that run, by group of callers, and the limit for all.",
                    (f"sum by (group) ({series('muster_guard_running_cost')})", "{{group}}"),
                    (or_zero(f"sum({series('muster_guard_running_cost_limit')})"), "limit of all"),
                ),
                graph(
                    "Cost within a minute",
                    "Cost of the requests that began within the last minute, by group of callers.",
                    (f"sum by (group) ({series('muster_guard_minute_cost')})", "{{group}}"),
                    stacked=True,
                ),
                graph(
                    "Running and waiting requests",
                    "Requests that run, by group of callers, those to Prometheus, and those that wait for a budget.",
                    (f"sum by (group) ({series('muster_guard_running_requests')})", "{{group}}"),
                    (f"sum({series('muster_guard_upstream_requests_in_flight')})", "to Prometheus"),
                    (f"sum({series('muster_guard_waiting_requests')})", "waiting"),
                ),
                ranked(
                    "Requests over budgets",
                    "Requests in the time range that did not fit in a budget, by group, whose budget, and "
                    "which figure of it.",
                    or_zero(top(15, grown(series("muster_guard_over_budget_total"), "group", "whose", "which"))),
                    "{{group}} {{whose}} {{which}}",
                    decimals=0,
                    width=24,
                ),
            ),
        ),
        Row(
            "Time and bytes",
            (
                graph(
                    "Duration by endpoint",
                    "9 of 10 requests took at most this long, with the time in Prometheus.",
                    (quantile(0.9, _DURATION, "endpoint"), "{{endpoint}}"),
                    unit="s",
                ),
                graph(
                    "Time added and waited",
                    "Time until a request was sent, and time that requests waited for a budget.",
                    (quantile(0.5, _ADDED), "added, median"),
                    (quantile(0.99, _ADDED), "added, 99 of 100"),
                    (quantile(0.99, _WAIT), "waited, 99 of 100"),
                    unit="s",
                ),
                graph(
                    "Answers",
                    "Bytes of answers per second, by endpoint.",
                    (or_zero(rate(series("muster_guard_answer_bytes_total"), "endpoint")), "{{endpoint}}"),
                    unit="Bps",
                    stacked=True,
                ),
                graph(
                    "Shared requests and refused connections",
                    "Requests that got the answer of an equal one, and connections that were closed at once.",
                    (or_zero(rate(series("muster_guard_shared_requests_total"))), "shared"),
                    (rate(series("muster_guard_refused_connections_total")), "refused connections"),
                    unit="ops",
                ),
            ),
        ),
    ),
)
