"""The dashboard of Muster's own control plane: leader, loops, informers, API client, webhook, read cache."""

from __future__ import annotations

from typing import Final

from muster.telemetry.dashboards.dashboard import Dashboard, Row
from muster.telemetry.dashboards.expressions import (
    IN_NAMESPACE,
    LEASE,
    OURS,
    PROCESSES,
    grown,
    led,
    or_zero,
    quantile,
    rate,
    series,
    share,
    top,
)
from muster.telemetry.dashboards.panel import bad_from, graph, ranked, stat

_REQUESTS: Final = series("muster_api_requests_total", PROCESSES)
_ERRORS: Final = series("muster_api_requests_total", PROCESSES, 'code=~"429|5..|error.*"')
_LATENCY: Final = series("muster_api_request_duration_seconds_bucket", PROCESSES)
_RECONCILE: Final = series("muster_reconcile_duration_seconds_bucket", PROCESSES)
_ADMISSION: Final = series("muster_admission_duration_seconds_bucket")
_CACHE: Final = 'job="readcache"'

CONTROL_PLANE: Final = Dashboard(
    name="control-plane",
    title="Control plane",
    description="Whether one controller leads, its loops and watches keep up, the API server answers, and the "
    "webhook and the read cache work.",
    rows=(
        Row(
            "Now",
            (
                stat(
                    "Leaders",
                    "Controllers that lead. It must be one for each cluster; without one, nothing is placed or "
                    "restarted.",
                    f"sum({series('muster_leader', LEASE)})",
                    steps=(),
                    alerts=("MusterNoLeader",),
                ),
                stat(
                    "Failed API requests",
                    "Share of the requests to the API server that it refused for load, or that failed.",
                    share(or_zero(rate(_ERRORS)), rate(_REQUESTS)),
                    "percentunit",
                    bad_from(0.01, 0.05),
                    alerts=("MusterApiErrors",),
                ),
                stat(
                    "API latency, 99 of 100",
                    "Time from a request to its complete answer, without watches.",
                    quantile(0.99, _LATENCY),
                    "s",
                    bad_from(1, 5),
                ),
                stat(
                    "Slowest loop",
                    "Longest time since a loop made progress.",
                    f"max({series('muster_progress_age_seconds', PROCESSES)})",
                    "s",
                    bad_from(60, 300),
                    alerts=("MusterLoopStalled",),
                ),
                stat(
                    "Stalest watch",
                    "Longest time since an informer got an event, bookmark or list. The API server sends "
                    "bookmarks each minute.",
                    f"max({series('muster_informer_last_progress_seconds', PROCESSES)})",
                    "s",
                    bad_from(120, 300),
                    alerts=("MusterWatchStale",),
                ),
                stat(
                    "Oldest key in a queue",
                    "Longest time for which a job has waited for its controller.",
                    f"max({series('muster_queue_oldest_seconds', PROCESSES)})",
                    "s",
                    bad_from(30, 300),
                    alerts=("MusterQueueStuck",),
                ),
            ),
        ),
        Row(
            "Requests to the API server",
            (
                graph(
                    "Requests by process",
                    "Requests per second of each process.",
                    (rate(_REQUESTS, "job"), "{{job}}"),
                    unit="reqps",
                    stacked=True,
                ),
                graph(
                    "Answers that are not 2xx",
                    "404 and 409 are usual in small numbers. 429 and 5xx mean that the API server has too much "
                    "load or fails.",
                    (
                        or_zero(rate(series("muster_api_requests_total", PROCESSES, 'code!~"2.."'), "verb", "code")),
                        "{{verb}} {{code}}",
                    ),
                    unit="reqps",
                    alerts=("MusterApiErrors",),
                ),
                graph(
                    "Latency by verb",
                    "99 of 100 requests took at most this long.",
                    (quantile(0.99, _LATENCY, "verb"), "{{verb}}"),
                    unit="s",
                ),
                graph(
                    "Retries",
                    "Requests that were sent again, by reason.",
                    (or_zero(rate(series("muster_api_retries_total", PROCESSES), "why")), "{{why}}"),
                    unit="reqps",
                    alerts=("MusterApiErrors",),
                ),
                graph(
                    "Events",
                    "Kubernetes Events that processes sent, by outcome.",
                    (or_zero(rate(series("muster_events_total"), "outcome")), "{{outcome}}"),
                    unit="ops",
                ),
                ranked(
                    "Agents with most API requests",
                    "Requests per second of agents on nodes. The cost grows with the cluster, so this should "
                    "be near 0.",
                    top(10, rate(series("muster_api_requests_total", 'job=~"network|agent"'), "instance")),
                    "{{instance}}",
                    "reqps",
                ),
            ),
        ),
        Row(
            "Informers and queues",
            (
                graph(
                    "Age of watches",
                    "Time since an informer got an event, bookmark or list, for the ten stalest kinds.",
                    (
                        top(10, f"max by (resource) ({series('muster_informer_last_progress_seconds', PROCESSES)})"),
                        "{{resource}}",
                    ),
                    unit="s",
                    alerts=("MusterWatchStale",),
                ),
                graph(
                    "Objects in caches",
                    "Objects of the ten kinds with most of them.",
                    (top(10, f"max by (resource) ({series('muster_informer_objects', PROCESSES)})"), "{{resource}}"),
                ),
                graph(
                    "Watch events",
                    "Events per second of the ten busiest kinds.",
                    (top(10, rate(series("muster_informer_events_total", PROCESSES), "resource")), "{{resource}}"),
                    unit="ops",
                ),
                graph(
                    "Lists and broken watches",
                    "Complete lists, and watches that ended early, per hour. Many of them load the API server.",
                    (f"3600 * {rate(series('muster_informer_lists_total', PROCESSES))}", "lists"),
                    (
                        or_zero(f"3600 * {rate(series('muster_informer_breaks_total', PROCESSES), 'why')}"),
                        "broken: {{why}}",
                    ),
                ),
                graph(
                    "Queues",
                    "Keys that wait for a worker, and the waiting time of the oldest.",
                    (f"max by (controller) ({series('muster_queue_depth', PROCESSES)})", "{{controller}} keys"),
                    (
                        f"max by (controller) ({series('muster_queue_oldest_seconds', PROCESSES)})",
                        "{{controller}} oldest, seconds",
                    ),
                    alerts=("MusterQueueStuck",),
                ),
                graph(
                    "Reconciles",
                    "Duration of reconciles, and errors per second.",
                    (quantile(0.99, _RECONCILE, "controller"), "{{controller}} 99 of 100, seconds"),
                    (
                        or_zero(rate(series("muster_reconcile_errors_total", PROCESSES), "controller", "error")),
                        "{{controller}} {{error}}/s",
                    ),
                    alerts=("MusterReconcileErrors",),
                ),
                graph(
                    "Slowest loops",
                    "Time since a loop made progress, for the ten slowest.",
                    (
                        top(10, f"max by (job, loop) ({series('muster_progress_age_seconds', PROCESSES)})"),
                        "{{job}} {{loop}}",
                    ),
                    unit="s",
                    alerts=("MusterLoopStalled",),
                ),
                graph(
                    "Leadership",
                    "1 for the controller that leads. Changes are rare: an upgrade, or a lost node.",
                    (f"max by (cluster, pod) ({series('muster_leader', LEASE)})", "{{cluster}} {{pod}}"),
                    most=1,
                    alerts=("MusterNoLeader",),
                ),
                graph(
                    "Processes",
                    "Processes of each part that Prometheus scrapes. A part without any has no alerts about itself.",
                    (f"count by (job) ({series('up', OURS)} == 1)", "{{job}}"),
                    alerts=("MusterTargetsDown", "MusterTargetsMissing"),
                ),
                graph(
                    "Restarts",
                    "Starts of processes per hour. `kubectl logs --previous` shows why one ended.",
                    (
                        f"sum by (job) (changes({series('process_start_time_seconds', PROCESSES)}[1h]))",
                        "{{job}}",
                    ),
                    alerts=("MusterProcessRestarts",),
                ),
                graph(
                    "CPU and memory of the controllers",
                    "CPU cores and resident memory in GiB of the largest process.",
                    (
                        f'max(rate(process_cpu_seconds_total{{{IN_NAMESPACE},job="controller"}}[$__rate_interval]))',
                        "cores",
                    ),
                    (f'max(process_resident_memory_bytes{{{IN_NAMESPACE},job="controller"}}) / 2^30', "GiB"),
                ),
            ),
        ),
        Row(
            "Webhook, teams, joins, blocks",
            (
                graph(
                    "Admission requests",
                    "Pods and jobs that the webhook completed, by outcome.",
                    (rate(series("muster_admission_requests_total"), "outcome"), "{{outcome}}"),
                    unit="reqps",
                    stacked=True,
                    alerts=("MusterAdmissionFails",),
                ),
                graph(
                    "Duration of admission",
                    "Creating a pod waits for it.",
                    (quantile(0.5, _ADMISSION), "median"),
                    (quantile(0.99, _ADMISSION), "99 of 100"),
                    unit="s",
                ),
                stat(
                    "Validity of the webhook's certificate",
                    "The webhook renews it long before its end.",
                    f"min({series('muster_admission_certificate_end_timestamp_seconds')}) - time()",
                    "s",
                    width=8,
                    height=8,
                    alerts=("MusterCertificateExpires",),
                ),
                graph(
                    "Teams: plans and writes",
                    "Duration of plans, and writes of nodes by outcome.",
                    (quantile(0.99, series("muster_teams_plan_duration_seconds_bucket")), "plan, 99 of 100, seconds"),
                    (or_zero(rate(series("muster_teams_node_writes_total"), "outcome")), "{{outcome}}/s"),
                ),
                graph(
                    "Age of plans",
                    "Time since the last plan of teams and of scaling.",
                    (f"time() - {led('muster_teams_last_plan_timestamp_seconds')}", "teams"),
                    (f"time() - {led('muster_scaling_last_plan_timestamp_seconds')}", "scaling"),
                    unit="s",
                ),
                graph(
                    "Configurations with errors",
                    "1 for a ConfigMap whose newest text is not in use.",
                    (led("muster_scheduler_config_broken"), "muster-scheduler"),
                    (f"1 - {led('muster_teams_config_ok')}", "muster-teams"),
                    (led("muster_balloons_config_broken"), "muster-balloons"),
                    (led("muster_joins_config_broken"), "muster-joins"),
                    (f"1 - {led('muster_scaling_config_valid')}", "muster-scaling"),
                    (led("muster_remediation_config_broken"), "muster-health"),
                    (led("muster_preflight_config_broken"), "muster-preflight"),
                    (led("muster_uplink_config_broken"), "muster-network"),
                    most=1,
                    alerts=("MusterConfigBroken",),
                ),
                graph(
                    "Joins: load of the API server",
                    "The present verdict, by which the pace of new nodes rises or falls, and opened nodes per hour.",
                    (led("muster_joins_verdict", "verdict"), "{{verdict}}"),
                    (f"3600 * {rate(series('muster_joins_opened_total'))}", "opened per hour"),
                ),
                graph(
                    "Joins: readings of the API server's metrics",
                    "By outcome. Without readings, nodes are opened at the lowest pace.",
                    (rate(series("muster_joins_scrapes_total"), "outcome"), "{{outcome}}"),
                    unit="ops",
                    alerts=("MusterJoinsSlow",),
                ),
                graph(
                    "Blocked accounts",
                    "Accounts that `muster doctor block` blocks, blocks that ended and are still there, and "
                    "removed ones per hour.",
                    (led("muster_blocks"), "blocked"),
                    (led("muster_blocks_overdue"), "overdue"),
                    (f"3600 * {rate(series('muster_blocks_removed_total'))}", "removed per hour"),
                    alerts=("MusterBlockOverdue",),
                ),
            ),
        ),
        Row(
            "Read cache",
            (
                stat(
                    "Forwarded requests",
                    "Share of clients' requests that the read cache passed on to the API server.",
                    share(
                        rate(series("muster_readcache_forwarded_requests_total", _CACHE)),
                        rate(series("muster_readcache_requests_total", _CACHE)),
                    ),
                    "percentunit",
                ),
                stat(
                    "Age of the stalest kind",
                    "Time since the last byte from the API server.",
                    f"max({series('muster_readcache_age_seconds', _CACHE)})",
                    "s",
                    bad_from(30, 60),
                    alerts=("MusterReadCacheStale",),
                ),
                stat(
                    "Failed requests",
                    "Requests in the time range that failed by a fault of the cache.",
                    grown(series("muster_readcache_failed_requests_total", _CACHE)),
                    steps=bad_from(1),
                    decimals=0,
                    alerts=("MusterReadCacheFails",),
                ),
                stat(
                    "Wrong state",
                    "Comparisons in the time range in which the cache differed from the API server.",
                    or_zero(grown(series("muster_readcache_self_checks_total", _CACHE, 'outcome="different"'))),
                    steps=bad_from(1),
                    decimals=0,
                    alerts=("MusterReadCacheDiffers",),
                ),
                stat(
                    "Connections",
                    "Open connections of clients.",
                    f"sum({series('muster_readcache_connections', _CACHE)})",
                ),
                stat(
                    "Waiting bytes",
                    "Bytes that wait for slow clients. At the limit, the slowest are cut off.",
                    f"sum({series('muster_readcache_waiting_bytes', _CACHE)})",
                    "bytes",
                ),
                graph(
                    "Requests of clients",
                    "All, forwarded, refused because freshness was not proven, and not valid.",
                    (rate(series("muster_readcache_requests_total", _CACHE)), "all"),
                    (rate(series("muster_readcache_forwarded_requests_total", _CACHE)), "forwarded"),
                    (rate(series("muster_readcache_unproven_total", _CACHE)), "not proven"),
                    (rate(series("muster_readcache_rejected_requests_total", _CACHE)), "not valid"),
                    unit="reqps",
                ),
                graph(
                    "Watches and events",
                    "Open watches, those of slow clients, and events that are sent per second.",
                    (f"sum({series('muster_readcache_watches', _CACHE)})", "watches"),
                    (f"sum({series('muster_readcache_watches_behind', _CACHE)})", "behind"),
                    (rate(series("muster_readcache_delivered_events_total", _CACHE)), "events/s"),
                    (rate(series("muster_readcache_slow_watches_total", _CACHE)), "closed, slow/s"),
                ),
                graph(
                    "Work at the API server",
                    "Lists, watches and events per second that the cache costs the API server.",
                    (rate(series("muster_readcache_upstream_lists_total", _CACHE)), "lists"),
                    (rate(series("muster_readcache_upstream_watches_total", _CACHE)), "watches"),
                    (rate(series("muster_readcache_upstream_events_total", _CACHE)), "events"),
                    (or_zero(rate(series("muster_readcache_upstream_breaks_total", _CACHE), "why")), "broken: {{why}}"),
                    unit="ops",
                ),
                graph(
                    "Memory by kind",
                    "Bytes of objects and of the event log, for the ten largest kinds.",
                    (
                        top(10, f"max by (resource) ({series('muster_readcache_object_bytes', _CACHE)})"),
                        "{{resource}} objects",
                    ),
                    (
                        top(10, f"max by (resource) ({series('muster_readcache_log_bytes', _CACHE)})"),
                        "{{resource}} log",
                    ),
                    unit="bytes",
                ),
                graph(
                    "Objects and log by kind",
                    "Objects in the cache, and events in the log, for the ten largest kinds.",
                    (
                        top(10, f"max by (resource) ({series('muster_readcache_objects', _CACHE)})"),
                        "{{resource}} objects",
                    ),
                    (
                        top(10, f"max by (resource) ({series('muster_readcache_log_events', _CACHE)})"),
                        "{{resource}} events",
                    ),
                ),
                graph(
                    "Proofs, checks and resets",
                    "How freshness was proven, comparisons with the API server, and versions that went back.",
                    (or_zero(rate(series("muster_readcache_proofs_total", _CACHE), "how")), "proof: {{how}}"),
                    (
                        or_zero(rate(series("muster_readcache_self_checks_total", _CACHE), "outcome")),
                        "check: {{outcome}}",
                    ),
                    (rate(series("muster_readcache_resets_total", _CACHE)), "resets"),
                    unit="ops",
                    alerts=("MusterReadCacheDiffers",),
                ),
                graph(
                    "Clients",
                    "New, refused and dropped connections.",
                    (rate(series("muster_readcache_connections_total", _CACHE)), "new"),
                    (rate(series("muster_readcache_refused_connections_total", _CACHE)), "refused"),
                    (
                        or_zero(rate(series("muster_readcache_dropped_clients_total", _CACHE), "why")),
                        "dropped: {{why}}",
                    ),
                    unit="ops",
                ),
                graph(
                    "Decisions about access",
                    "Questions that the API server answered, those that a kept answer settled, and tokens that "
                    "were refused for their number.",
                    (
                        or_zero(rate(series("muster_readcache_reviews_total", _CACHE), "review", "outcome")),
                        "{{review}} {{outcome}}",
                    ),
                    (
                        or_zero(rate(series("muster_readcache_kept_decisions_total", _CACHE), "review")),
                        "{{review}} kept",
                    ),
                    (rate(series("muster_readcache_limited_tokens_total", _CACHE)), "refused tokens"),
                    unit="ops",
                ),
            ),
        ),
    ),
)
