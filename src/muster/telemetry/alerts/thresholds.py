"""The thresholds of all alerts."""

from __future__ import annotations

from typing import Final

from muster.telemetry.alerts.alert import Threshold

THRESHOLDS: Final = tuple(
    Threshold(*each)
    for each in (
        ("apiErrorsShare", 0.05, "share of a process's requests to the API server that failed"),
        ("apiRetriesShare", 0.2, "retries of requests per request of a process"),
        ("informerStaleSeconds", 180, "seconds without an event, bookmark or list of a watch"),
        ("queueOldestSeconds", 300, "seconds for which a key has waited for a worker"),
        ("reconcileErrorsShare", 0.2, "share of reconciles that ended with an error; conflicts do not count"),
        ("restartsPerHour", 2, "starts of one process within an hour"),
        ("targetsDownShare", 0.1, "share of the targets of a part that cannot be scraped"),
        ("certificateSeconds", 864000, "seconds until the end of a serving certificate"),
        ("timeToUsefulSeconds", 300, "seconds from a fault to the first later step, for 9 of 10 restarts in 6 h"),
        ("checkpointsNotSaved", 3, "checkpoints that could not be saved within 30 min"),
        ("schedulerStaleSeconds", 120, "seconds since the scheduler's last plan"),
        ("idleGpus", 16, "GPUs that are idle for one reason while gangs wait, on average over 30 min"),
        ("gangsReleased", 3, "gangs within 30 min that were released because they were not bound in time"),
        ("bindsFailedShare", 0.1, "share of binds that failed within 30 min"),
        ("unhealthyNodesShare", 0.05, "share of nodes that remediation has out of use or works on"),
        ("operatorNodesShare", 0.01, "share of nodes that need an operator"),
        ("preflightFailedShare", 0.2, "share of preflight tests within 2 h that were not passed"),
        ("agentsMissingShare", 0.1, "share of nodes without a running agent"),
        ("agentsFailingShare", 0.05, "share of agents with the problem"),
        ("findingsUnwrittenSeconds", 600, "seconds for which an agent cannot write what it found"),
        ("readCacheStaleSeconds", 60, "seconds since the read cache heard from the API server"),
        ("readCacheFailedShare", 0.01, "share of requests that the read cache failed or refused"),
        ("cniFailedShare", 0.1, "share of ADD requests to the CNI plugin that failed"),
        ("uplinkAloneShare", 0.05, "share of nodes that enforce limits without the hub"),
        ("guardRefusedShare", 0.2, "share of requests that the guard refused for their cost"),
        ("guardFailedShare", 0.05, "share of requests for which the guard had no answer or no price"),
        ("shardCopiesFailedShare", 0.2, "share of checkpoint shards that were not copied to another node"),
    )
)  # fmt: skip

DEFAULTS: Final = {each.name: each.default for each in THRESHOLDS}
