"""A systemd unit and a static pod for each etcd, and flags of kube-apiserver, as plain data."""

from __future__ import annotations

from typing import Any, Final

from muster.doctor.etcd.sizing import Cluster, Settings

_PORTS: Final = {"main": (2379, 2380, 2381), "events": (2382, 2383, 2384)}
"""Ports for clients, for members and for metrics. Both clusters may run on the same machines."""
_PKI: Final = "/etc/kubernetes/pki/etcd"


def command(cluster: Cluster) -> list[str]:
    """Return the command of one member. NAME, IP and MEMBERS are to be replaced."""
    client, peer, metrics = _PORTS[cluster.name]
    folder = "/var/lib/etcd" if cluster.name == "main" else "/var/lib/etcd-events"
    flags = {
        "name": "NAME",
        "data-dir": folder,
        **({"wal-dir": "/var/lib/etcd-wal"} if cluster.separate_wal_disk else {}),
        "listen-client-urls": f"https://IP:{client}",
        "advertise-client-urls": f"https://IP:{client}",
        "listen-peer-urls": f"https://IP:{peer}",
        "initial-advertise-peer-urls": f"https://IP:{peer}",
        "initial-cluster": "MEMBERS",
        "listen-metrics-urls": f"http://127.0.0.1:{metrics}",
        "client-cert-auth": "true",
        "trusted-ca-file": f"{_PKI}/ca.crt",
        "cert-file": f"{_PKI}/server.crt",
        "key-file": f"{_PKI}/server.key",
        "peer-client-cert-auth": "true",
        "peer-trusted-ca-file": f"{_PKI}/ca.crt",
        "peer-cert-file": f"{_PKI}/peer.crt",
        "peer-key-file": f"{_PKI}/peer.key",
        **cluster.flags,
    }
    return ["etcd", *(f"--{name}={value}" for name, value in flags.items())]


def systemd_unit(cluster: Cluster) -> dict[str, dict[str, str]]:
    """Return the sections of a systemd unit."""
    return {
        "Unit": {"Description": f"etcd ({cluster.name})", "After": "network-online.target"},
        "Service": {
            "Type": "notify",
            "ExecStart": " ".join(["/usr/local/bin/etcd", *command(cluster)[1:]]),
            "Restart": "always",
            "RestartSec": "5",
            "LimitNOFILE": "65536",
            "IOSchedulingClass": "best-effort",
            "IOSchedulingPriority": "0",
        },
        "Install": {"WantedBy": "multi-user.target"},
    }


def static_pod(cluster: Cluster, image: str = "ETCD_IMAGE") -> dict[str, Any]:
    """Return a static pod, as kubeadm writes one for etcd."""
    words = command(cluster)
    folders = [word.partition("=")[2] for word in words if word.startswith(("--data-dir=", "--wal-dir="))]
    probe = {"httpGet": {"host": "127.0.0.1", "port": _PORTS[cluster.name][2], "path": "/readyz"}}
    name = "etcd" if cluster.name == "main" else "etcd-events"
    mounts = {f"data-{number}": folder for number, folder in enumerate(folders)} | {"pki": _PKI}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "kube-system", "labels": {"component": name, "tier": "control-plane"}},
        "spec": {
            "hostNetwork": True,
            "priorityClassName": "system-node-critical",
            "containers": [
                {
                    "name": name,
                    "image": image,
                    "command": words,
                    "resources": {"requests": {"cpu": "1", "memory": str(cluster.memory_bytes)}},
                    "startupProbe": probe | {"failureThreshold": 24, "periodSeconds": 10},
                    "readinessProbe": probe,
                    "volumeMounts": [{"name": key, "mountPath": path} for key, path in mounts.items()],
                }
            ],
            "volumes": [
                {"name": key, "hostPath": {"path": path, "type": "DirectoryOrCreate"}} for key, path in mounts.items()
            ],
        },
    }


def apiserver_flags(settings: Settings) -> list[str]:
    """Return the flags to add to kube-apiserver."""
    return [f"--{name}={value}" for name, value in settings.apiserver_flags.items()]
