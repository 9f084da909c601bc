"""For each alert, series that make it fire from minute 10 to minute 130, as promtool writes them."""

from __future__ import annotations

from typing import Final, NamedTuple

from muster.telemetry.alerts.alerts import by_name

GAUGE: Final = "0x9 1x120 0x500"
"""0 until minute 9, 1 until minute 130, then 0."""
COUNTER: Final = "0x9 1+1x120 121x500"
ALWAYS: Final = "1x600"
LEADER: Final = {'muster_leader{lease="muster-controller", job="controller", instance="a"}': ALWAYS}
_OF_LEADER: Final = 'job="controller", instance="a"'
NODES: Final = {'muster_informer_objects{job="controller", resource="nodes"}': "100x600"}


class Case(NamedTuple):
    """Series, and the alert that they cause.

    Attributes:
        series: by name and labels.
        labels: of the alert, except its name and severity.
        summary: rendered, at the end of its wait.
        late_min: minutes that the alert needs in addition to its wait.
    """

    series: dict[str, str]
    labels: dict[str, str]
    summary: str
    late_min: int = 0


def share(counter: str, bad: str, good: str) -> dict[str, str]:
    """A counter that counts what is bad as often as what is good."""
    return {f"{counter}{{{bad}}}": COUNTER, f"{counter}{{{good}}}": COUNTER}


_HALF: Final = "50%"
_UP: Final = {f'up{{job="agent", instance="{number}"}}': ALWAYS for number in range(100)}

CASES: Final[dict[str, Case]] = {
    "MusterNoLeader": Case(
        {'muster_leader{lease="muster-controller", job="controller", instance="a"}': "1x9 0x120 1x500"},
        {},
        "No controller leads: jobs run on, but nothing is placed, restarted or repaired.",
    ),
    "MusterLoopStalled": Case(
        {
            'muster_progress_age_seconds{job="readcache", instance="a", loop="x"}': "5x9 31x120 5x500",
            'muster_progress_deadline_seconds{job="readcache", instance="a", loop="x"}': "30x600",
        },
        {"job": "readcache", "loop": "x"},
        "The loop x of readcache is past its deadline in 1 processes.",
    ),
    "MusterProcessRestarts": Case(
        {'process_start_time_seconds{job="admission", instance="a"}': "1x9 2 3 4 5 6 7 8x500"},
        {"job": "admission"},
        "A process of admission started 3 more times within an hour.",
        2,
    ),
    "MusterWatchStale": Case(
        {'muster_informer_last_progress_seconds{job="controller", resource="pods"}': "9x9 240x120 9x500"},
        {"job": "controller", "resource": "pods"},
        "controller has not heard about pods for 4m 0s.",
    ),
    "MusterApiErrors": Case(
        share("muster_api_requests_total", 'job="controller", code="503"', 'job="controller", code="200"'),
        {"job": "controller"},
        f"{_HALF} of the API server's answers to controller are errors.",
        2,
    ),
    "MusterQueueStuck": Case(
        {'muster_queue_oldest_seconds{job="controller", controller="jobs"}': "1x9 360x120 0x500"},
        {"job": "controller", "controller": "jobs"},
        "A key of jobs has waited for 6m 0s.",
    ),
    "MusterReconcileErrors": Case(
        {
            'muster_reconcile_errors_total{controller="jobs", error="Forbidden"}': COUNTER,
            'muster_reconcile_duration_seconds_count{controller="jobs"}': "0x9 2+2x120 242x500",
        },
        {"controller": "jobs"},
        f"{_HALF} of the reconciles of jobs fail.",
        2,
    ),
    "MusterConfigBroken": Case(
        {f"muster_joins_config_broken{{{_OF_LEADER}}}": GAUGE, **LEADER},
        {"configmap": "muster-joins"},
        "The ConfigMap muster-joins has errors, so an earlier configuration is in use.",
    ),
    "MusterCertificateExpires": Case(
        {'muster_certificate_end_timestamp_seconds{job="readcache", secret="s"}': "2000000x9 860000x120 2000000x500"},
        {"job": "readcache", "secret": "s"},
        "The certificate of readcache ends in 9d 21h 43m 20s.",
    ),
    "MusterBlockOverdue": Case(
        {f"muster_blocks_overdue{{{_OF_LEADER}}}": GAUGE, **LEADER},
        {},
        "1 accounts are still blocked at the API server although their blocks have ended.",
    ),
    "MusterTargetsMissing": Case(
        {'up{job="controller", instance="a"}': "1x9 _x121 1x500"},
        {"job": "controller"},
        "Prometheus scrapes no target of controller, so other alerts about it cannot fire.",
        5,
    ),
    "MusterTargetsDown": Case(
        {'up{job="cache", instance="a"}': "1x9 0x120 1x500", 'up{job="cache", instance="b"}': ALWAYS},
        {"job": "cache"},
        f"{_HALF} of the targets of cache cannot be scraped.",
    ),
    "MusterJobsStalled": Case({"muster_trainingjob_stalled": GAUGE}, {}, "1 jobs hold their GPUs but report no steps."),
    "MusterJobFaultsRepeat": Case(
        {"muster_trainingjob_repeated_faults": GAUGE}, {}, "1 jobs had three or more faults within an hour."
    ),
    "MusterTimeToUsefulHigh": Case(
        {
            'muster_trainingjob_time_to_useful_seconds_bucket{le="600"}': "0x600",
            'muster_trainingjob_time_to_useful_seconds_bucket{le="3600"}': COUNTER,
            'muster_trainingjob_time_to_useful_seconds_bucket{le="+Inf"}': COUNTER,
        },
        {},
        "One in ten restarts takes more than 55m 0s to the first later step.",
        2,
    ),
    "MusterCheckpointsNotSaved": Case(
        {"muster_trainingjob_checkpoints_not_saved_total": COUNTER},
        {},
        "Jobs could not save about 5 checkpoints within 30 minutes.",
        4,
    ),
    "MusterCheckpointsQuarantined": Case(
        {'muster_trainingjob_checkpoints_quarantined_total{reason="Corrupt"}': "_x10 1x500"},
        {"reason": "Corrupt"},
        "Ranks could not restore a confirmed checkpoint: Corrupt.",
    ),
    "MusterSchedulerNotPlanning": Case(
        {"muster_scheduler_last_plan_timestamp_seconds": "0+60x9 600x20 1800+60x600"},
        {},
        "The scheduler has not planned for 4m 0s.",
        3,
    ),
    "MusterGangsWaitWithIdleGpus": Case(
        {'muster_scheduler_idle_while_waiting_gpu_seconds_total{reason="untested"}': "0x9 2400+2400x120 290400x500"},
        {"reason": "untested"},
        "40 GPUs are idle while gangs wait. Reason: untested.",
        14,
    ),
    "MusterPlacementsFail": Case(
        share("muster_scheduler_binds_total", 'outcome="Forbidden"', 'outcome="bound"'),
        {},
        "The API server refuses binds, or gangs were released because they were not bound in time.",
        2,
    ),
    "MusterUnhealthyNodes": Case(
        {
            f'muster_remediation_nodes{{{_OF_LEADER}, rung="Drain", phase="Open"}}': "0x9 10x120 0x500",
            **LEADER,
            **NODES,
        },
        {},
        "10% of the nodes have faults that remediation works on.",
    ),
    "MusterRemediationHeld": Case(
        {f'muster_remediation_held_nodes{{{_OF_LEADER}, reason="Breaker"}}': GAUGE, **LEADER},
        {"reason": "Breaker"},
        "1 nodes wait for their next repair, stopped by this limit: Breaker.",
    ),
    "MusterNodesNeedOperator": Case(
        {
            f'muster_remediation_nodes{{{_OF_LEADER}, rung="Replace", phase="NeedsOperator"}}': "0x9 2x120 0x500",
            **LEADER,
            **NODES,
        },
        {},
        "2% of the nodes are out of use until an operator repairs them.",
    ),
    "MusterAgentsMissing": Case(
        {
            'up{job="agent", instance="a"}': ALWAYS,
            'muster_informer_objects{job="controller", resource="nodes"}': GAUGE.replace("1x", "4x").replace(
                "0x", "1x"
            ),
        },
        {},
        "75% of the nodes have no running agent, so their faults go unseen.",
    ),
    "MusterFindingsNotWritten": Case(
        {
            **{
                f'muster_agent_writes_failing_seconds{{instance="{number}"}}': "0x9 900x120 0x500"
                for number in range(10)
            },
            **_UP,
            **NODES,
        },
        {},
        "10% of the agents cannot write what they found.",
    ),
    "MusterAgentChecksFail": Case(
        {
            **{
                f'muster_agent_looks_total{{instance="{number}", check="gpu", outcome="failed"}}': COUNTER
                for number in range(10)
            },
            **_UP,
            **NODES,
        },
        {"check": "gpu"},
        "The check gpu fails on 10% of the nodes.",
        2,
    ),
    "MusterPreflightsFail": Case(
        share("muster_preflight_tests_total", 'level="1", outcome="failed"', 'level="1", outcome="passed"'),
        {"level": "1"},
        f"{_HALF} of the tests of level 1 were not passed.",
        2,
    ),
    "MusterJoinsSlow": Case(
        {f"muster_joins_waiting_nodes{{{_OF_LEADER}}}": GAUGE, **LEADER},
        {},
        "1 nodes are Ready but not yet opened to pods, and some node has waited all the time.",
    ),
    "MusterScalingBlocked": Case(
        {f'muster_scaling_pool_blocked{{{_OF_LEADER}, pool="h100", fault="NoCapacity"}}': GAUGE, **LEADER},
        {"pool": "h100", "fault": "NoCapacity"},
        "The pool h100 gets no nodes: NoCapacity.",
    ),
    "MusterTeamsCautions": Case(
        {f'muster_teams_cautions{{{_OF_LEADER}, reason="OverAsked"}}': GAUGE, **LEADER},
        {"reason": "OverAsked"},
        "Nodes are not with the teams as allocated: OverAsked (1).",
    ),
    "MusterAdmissionFails": Case(
        {'muster_admission_requests_total{outcome="unknown"}': COUNTER},
        {"outcome": "unknown"},
        "The webhook cannot fill in pods: unknown.",
        1,
    ),
    "MusterReadCacheStale": Case(
        {'muster_readcache_age_seconds{job="readcache", resource="nodes", media="json"}': "0x9 90x120 0x500"},
        {"job": "readcache", "resource": "nodes"},
        "readcache has not heard about nodes for 1m 30s.",
    ),
    "MusterReadCacheFails": Case(
        {
            'muster_readcache_failed_requests_total{job="readcache"}': "0x600",
            'muster_readcache_unproven_total{job="readcache", resource="nodes"}': COUNTER,
            'muster_readcache_refused_connections_total{job="readcache"}': "0x600",
            'muster_readcache_requests_total{job="readcache"}': "0x9 2+2x120 242x500",
        },
        {"job": "readcache"},
        f"readcache fails or refuses {_HALF} of its requests.",
        2,
    ),
    "MusterReadCacheDiffers": Case(
        {'muster_readcache_self_checks_total{job="readcache", resource="pods", outcome="different"}': "_x10 1x500"},
        {"job": "readcache", "resource": "pods"},
        "readcache held pods that differ from the API server's.",
    ),
    "MusterNodeAddressesShort": Case(
        {'muster_network_addresses_short{instance="a", reason="SubnetFull"}': GAUGE},
        {"reason": "SubnetFull"},
        "1 nodes have too few free addresses for pods: SubnetFull.",
    ),
    "MusterAddressProblems": Case(
        {'muster_network_address_problems{instance="a", problem="Orphaned"}': GAUGE},
        {"problem": "Orphaned"},
        "On 1 nodes, records of addresses differ from what exists: Orphaned.",
    ),
    "MusterCniFails": Case(
        {'muster_network_cni_ready{instance="a"}': "1x9 0x120 1x500"}, {}, "New pods get no network on some nodes."
    ),
    "MusterTrafficNotCounted": Case(
        {'muster_network_ledger_damaged{instance="a"}': GAUGE}, {}, "1 nodes lose figures about traffic."
    ),
    "MusterUplinkWithoutHub": Case(
        {
            'muster_network_uplink_source{instance="a", source="lease"}': ALWAYS,
            'muster_network_uplink_source{instance="b", source="lease"}': "1x9 _x121 1x500",
            'muster_network_uplink_source{instance="b", source="decay"}': "_x10 1x120",
        },
        {},
        f"{_HALF} of the nodes limit traffic without the hub's allotment.",
        5,
    ),
    "MusterNetworkAgentFails": Case(
        {'muster_network_tuning_problems{instance="a"}': GAUGE},
        {},
        "The network agents of 1 nodes cannot set the kernel or save their state.",
    ),
    "MusterDataCacheBypassed": Case(
        {'muster_cache_bypassed{instance="a"}': GAUGE},
        {},
        "The data cache does not use its disk on 1 nodes, because it is slow or fails.",
    ),
    "MusterDataCacheCorrupt": Case(
        {'muster_cache_corrupt_files_total{instance="a"}': "0x9 1x500"},
        {},
        "Files of the data cache did not match their checksum on 1 nodes.",
    ),
    "MusterShardCopiesFail": Case(
        share("muster_cache_shard_copies_total", 'outcome="lost"', 'outcome="ok"'),
        {},
        f"{_HALF} of the checkpoint shards have no copy on another node.",
        2,
    ),
    "MusterGuardRefuses": Case(
        share("muster_guard_requests_total", 'outcome="refused"', 'outcome="answered"'),
        {},
        f"The guard refuses {_HALF} of the requests, because they cost too much.",
        2,
    ),
    "MusterGuardWithoutUpstream": Case(
        share("muster_guard_requests_total", 'outcome="unreachable"', 'outcome="answered"'),
        {},
        f"{_HALF} of the guard's requests get no answer from Prometheus.",
        2,
    ),
    "MusterGuardWithoutPrice": Case(
        share("muster_guard_requests_total", 'outcome="no_price"', 'outcome="answered"'),
        {},
        f"The guard finds no price for {_HALF} of the requests, and refuses them.",
        2,
    ),
    "MusterGuardConfigBroken": Case(
        {
            'muster_guard_config_problem{job="guard", instance="a"}': GAUGE,
            'muster_guard_config_problem{job="guard", instance="b"}': "0x600",
        },
        {},
        "1 guards cannot use the newest guard.yaml, so an earlier configuration is in use.",
    ),
    "MusterGuardUpstreamFilesBroken": Case(
        {
            'muster_guard_upstream_files_problem{job="guard", instance="a", files="token"}': GAUGE,
            'muster_guard_upstream_files_problem{job="guard", instance="b", files="token"}': GAUGE,
            'muster_guard_upstream_files_problem{job="guard", instance="a", files="certificates"}': "0x600",
        },
        {"files": "token"},
        "2 guards cannot use their new token: requests fail once the old expire.",
    ),
}

assert CASES.keys() == by_name().keys()
