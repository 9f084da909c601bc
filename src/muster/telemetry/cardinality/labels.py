"""Names of labels whose values are nodes, pods, peers or buckets, as common exporters write them."""

from __future__ import annotations

from typing import Final

NODE: Final = frozenset(
    {
        "node", "nodename", "node_name", "host", "hostname", "kubernetes_node", "kubernetes_io_hostname",
        "exported_node", "Hostname", "provider_id", "internal_ip", "system_uuid", "node_ip", "host_ip",
    }
)  # fmt: skip
POD: Final = frozenset(
    {
        "pod", "pod_name", "exported_pod", "kubernetes_pod_name", "kubernetes_pod", "pod_ip", "pod_uid", "uid",
        "container_id", "created_by_name", "endpoint_pod", "podname", "pod_template_hash", "job_name", "replicaset",
    }
)  # fmt: skip
PEER: Final = frozenset(
    {
        "peer", "source", "src", "target", "dst", "destination", "dest", "remote", "remote_node", "target_node",
        "source_node", "destination_node", "from", "to", "source_node_name", "target_node_name", "peer_node",
        "source_pod", "destination_pod", "client", "server",
    }
)  # fmt: skip
BUCKET: Final = frozenset({"le", "quantile"})
NEEDLESS: Final = frozenset({"uid", "pod_uid", "container_id", "id", "image_id", "pod_ip", "pod_template_hash", "name"})
"""Labels that repeat what another label says, or change with each restart; often they can be dropped."""
TARGET: Final = "instance"
OF_SCRAPES: Final = "scrape_"
"""Begins the names of metrics that the server makes for each target; like `up` they cannot be dropped."""
POD_PREFIXES: Final = ("kube_pod_", "kube_job_", "kube_replicaset_", "container_")
NODE_PREFIXES: Final = ("kube_node_", "node_")
"""Names of metrics of kube-state-metrics, cAdvisor and the node exporter, if no series can be looked at."""
