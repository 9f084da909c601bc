"""Alerts about the processes themselves: leader, loops, watches, the API server, configuration, targets."""

from __future__ import annotations

from typing import Final

from muster.telemetry.alerts.alert import Alert, RuleFile
from muster.telemetry.alerts.expressions import lines, of_leader
from muster.telemetry.alerts.targets import PARTS, missing

_CONFIGS: Final = {
    "muster-scheduler": of_leader("muster_scheduler_config_broken") + " == 1",
    "muster-balloons": of_leader("muster_balloons_config_broken") + " == 1",
    "muster-joins": of_leader("muster_joins_config_broken") + " == 1",
    "muster-preflight": of_leader("muster_preflight_config_broken") + " == 1",
    "muster-health": of_leader("muster_remediation_config_broken") + " == 1",
    "muster-network": of_leader("muster_uplink_config_broken") + " == 1",
    "muster-scaling": of_leader("muster_scaling_config_valid") + " == 0",
    "muster-teams": of_leader("muster_teams_config_ok") + " == 0",
}
"""Per ConfigMap, when its newest text is not in use."""

_BROKEN: Final = "\nor ".join(
    f'label_replace(max by (cluster) ({expr}), "configmap", "{name}", "", "")' for name, expr in _CONFIGS.items()
)

CONTROLLER: Final = RuleFile(
    "controller",
    (
        Alert(
            name="MusterNoLeader",
            expr=lines("""
                max by (cluster, namespace) (muster_leader{lease="muster-controller"}) == 0
                or absent(muster_leader{lease="muster-controller"})
            """),
            for_s=120,
            severity="critical",
            summary="No controller leads: jobs run on, but nothing is placed, restarted or repaired.",
        ),
        Alert(
            name="MusterLoopStalled",
            expr=lines("""
                count by (cluster, job, loop) (
                  muster_progress_age_seconds > on (cluster, job, instance, loop) muster_progress_deadline_seconds
                )
            """),
            for_s=0,
            severity="critical",
            summary="The loop {{ $labels.loop }} of {{ $labels.job }} is past its deadline in {{ $value }} processes.",
        ),
        Alert(
            name="MusterProcessRestarts",
            expr=lines(f"""
                max by (cluster, job) (
                  changes(process_start_time_seconds{{job=~"{PARTS}"}}[1h])
                ) > $restartsPerHour
            """),
            for_s=0,
            severity="warning",
            summary="A process of {{ $labels.job }} started {{ $value }} more times within an hour.",
        ),
        Alert(
            name="MusterWatchStale",
            expr=lines("""
                max by (cluster, job, resource) (muster_informer_last_progress_seconds) > $informerStaleSeconds
            """),
            for_s=120,
            severity="warning",
            summary="{{ $labels.job }} has not heard about {{ $labels.resource }} for {{ $value | humanizeDuration }}.",
        ),
        Alert(
            name="MusterApiErrors",
            expr=lines("""
                sum by (cluster, job) (rate(muster_api_requests_total{code!~"2..|404|409|410|429"}[10m]))
                / sum by (cluster, job) (rate(muster_api_requests_total[10m])) > $apiErrorsShare
                or sum by (cluster, job) (rate(muster_api_retries_total[10m]))
                / sum by (cluster, job) (rate(muster_api_requests_total[10m])) > $apiRetriesShare
            """),
            for_s=600,
            severity="warning",
            summary="{{ $value | humanizePercentage }} of the API server's answers to {{ $labels.job }} are errors.",
        ),
        Alert(
            name="MusterQueueStuck",
            expr="max by (cluster, job, controller) (muster_queue_oldest_seconds) > $queueOldestSeconds",
            for_s=60,
            severity="warning",
            summary="A key of {{ $labels.controller }} has waited for {{ $value | humanizeDuration }}.",
        ),
        Alert(
            name="MusterReconcileErrors",
            expr=lines("""
                sum by (cluster, controller) (rate(muster_reconcile_errors_total{error!="Conflict"}[10m]))
                / sum by (cluster, controller) (rate(muster_reconcile_duration_seconds_count[10m]))
                > $reconcileErrorsShare
            """),
            for_s=900,
            severity="warning",
            summary="{{ $value | humanizePercentage }} of the reconciles of {{ $labels.controller }} fail.",
        ),
        Alert(
            name="MusterConfigBroken",
            expr=_BROKEN,
            for_s=300,
            severity="warning",
            summary="The ConfigMap {{ $labels.configmap }} has errors, so an earlier configuration is in use.",
        ),
        Alert(
            name="MusterCertificateExpires",
            expr=lines("""
                min by (cluster, job, secret) (muster_certificate_end_timestamp_seconds) - time() < $certificateSeconds
                or min by (cluster, job) (muster_admission_certificate_end_timestamp_seconds > 0) - time()
                < $certificateSeconds
            """),
            for_s=3600,
            severity="warning",
            summary="The certificate of {{ $labels.job }} ends in {{ $value | humanizeDuration }}.",
        ),
        Alert(
            name="MusterBlockOverdue",
            expr=f"max by (cluster) {of_leader('muster_blocks_overdue')} > 0",
            for_s=600,
            severity="critical",
            summary="{{ $value }} accounts are still blocked at the API server although their blocks have ended.",
        ),
        missing("controller"),
        Alert(
            name="MusterTargetsDown",
            expr=lines(f"""
                count by (cluster, job) (up{{job=~"{PARTS}"}} == 0)
                / count by (cluster, job) (up{{job=~"{PARTS}"}}) > $targetsDownShare
            """),
            for_s=900,
            severity="warning",
            summary="{{ $value | humanizePercentage }} of the targets of {{ $labels.job }} cannot be scraped.",
        ),
    ),
)
