"""Fills in defaults of a pod.

Source: kubernetes pkg/apis/core/v1/defaults.go, and the admission plugins ServiceAccount, DefaultTolerationSeconds and
Priority.
"""

from __future__ import annotations

import random
from typing import Any

from muster.embedded.apiserver.kinds.quantities import canonical, canonical_or_same
from muster.embedded.apiserver.types.names import SUFFIX_ALPHABET
from muster.embedded.objects import Obj, items, section
from muster.kube.objects.quantity import QuantityError, parse_quantity

FILE_MODE = 420  # 0644
TOKEN_MOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
TOKEN_SECONDS = 3607
EVICTION_TOLERATION_S = 300
_QOS_RESOURCES = ("cpu", "memory")


def default_spec(spec: Obj) -> None:
    """Fill in defaults of a pod's spec; idempotent."""
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("terminationGracePeriodSeconds", 30)
    spec.setdefault("dnsPolicy", "ClusterFirst")
    spec.setdefault("securityContext", {})
    spec.setdefault("schedulerName", "default-scheduler")
    spec.setdefault("enableServiceLinks", True)
    for volume in items(spec, "volumes"):
        _default_volume(volume)
    for name in ("initContainers", "containers"):
        for container in items(spec, name):
            _default_container(container, host_network=bool(spec.get("hostNetwork")))
    for name in ("limits", "requests"):
        canonical(section(section(spec, "resources"), name))
    canonical(section(spec, "overhead"))


def _default_container(container: Obj, *, host_network: bool) -> None:
    image = container.get("image") or ""
    tag = image.rpartition("/")[2].partition("@")[0].partition(":")[2]
    latest = ("@" not in image) and tag in ("", "latest")
    container.setdefault("imagePullPolicy", "Always" if latest else "IfNotPresent")
    container.setdefault("terminationMessagePath", "/dev/termination-log")
    container.setdefault("terminationMessagePolicy", "File")
    resources = container.setdefault("resources", {})
    for name in ("limits", "requests"):
        canonical(section(resources, name))
    limits = section(resources, "limits")
    if limits:
        requests = resources.setdefault("requests", {})
        for name, quantity in limits.items():
            requests.setdefault(name, quantity)
    for port in items(container, "ports"):
        port.setdefault("protocol", "TCP")
        if host_network:
            port.setdefault("hostPort", port.get("containerPort"))
    for variable in items(container, "env"):
        reference = section(section(variable, "valueFrom"), "fieldRef")
        if reference:
            reference.setdefault("apiVersion", "v1")
        resource = section(section(variable, "valueFrom"), "resourceFieldRef")
        if resource:
            resource["divisor"] = canonical_or_same(resource.get("divisor", "0"))
    for name in ("livenessProbe", "readinessProbe", "startupProbe"):
        probe = container.get(name)
        if isinstance(probe, dict):
            for field, value in (
                ("timeoutSeconds", 1),
                ("periodSeconds", 10),
                ("successThreshold", 1),
                ("failureThreshold", 3),
            ):
                if not probe.get(field):
                    probe[field] = value
            _default_get(probe)
    for hook in section(container, "lifecycle").values():
        if isinstance(hook, dict):
            _default_get(hook)


def _default_get(handler: Obj) -> None:
    get = handler.get("httpGet")
    if isinstance(get, dict):
        get.setdefault("path", "/")
        get.setdefault("scheme", "HTTP")
    if isinstance(handler.get("grpc"), dict):
        handler["grpc"].setdefault("service", "")


def _default_volume(volume: Obj) -> None:
    if all(key == "name" for key in volume):
        volume["emptyDir"] = {}
    for name in ("configMap", "secret", "projected", "downwardAPI"):
        source = volume.get(name)
        if isinstance(source, dict):
            source.setdefault("defaultMode", FILE_MODE)
    host = volume.get("hostPath")
    if isinstance(host, dict):
        host.setdefault("type", "")
    empty = volume.get("emptyDir")
    if isinstance(empty, dict) and "sizeLimit" in empty:
        empty["sizeLimit"] = canonical_or_same(empty["sizeLimit"])
    projected = section(volume, "projected")
    downward = [section(source, "downwardAPI") for source in items(projected, "sources")]
    for source in items(projected, "sources"):
        token = source.get("serviceAccountToken")
        if isinstance(token, dict):
            token.setdefault("expirationSeconds", 3600)
    for api in [*downward, section(volume, "downwardAPI")]:
        for item in items(api, "items"):
            if isinstance(item.get("fieldRef"), dict):
                item["fieldRef"].setdefault("apiVersion", "v1")


def default_tolerations(spec: Obj) -> None:
    """Tolerate an unready or unreachable node for five minutes (DefaultTolerationSeconds)."""
    tolerations = items(spec, "tolerations")
    for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"):
        if not any(_covers(toleration, key) for toleration in tolerations):
            spec.setdefault("tolerations", []).append(
                {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": EVICTION_TOLERATION_S}
            )


def _covers(toleration: Obj, key: str) -> bool:
    return toleration.get("key", "") in ("", key) and toleration.get("effect", "") in ("", "NoExecute")


def mount_token(spec: Obj, account: Obj, rng: random.Random) -> None:
    """Mount the service account's token, unless another volume is mounted there (ServiceAccount admission)."""
    wanted = spec.get("automountServiceAccountToken")
    if wanted is None:
        wanted = account.get("automountServiceAccountToken")
    if wanted is False:
        return
    volume_name = ""
    for volume in items(spec, "volumes"):
        if str(volume.get("name", "")).startswith("kube-api-access-"):
            volume_name = volume["name"]
    name = volume_name or "kube-api-access-" + "".join(rng.choice(SUFFIX_ALPHABET) for _ in range(5))
    used = False
    for container in [*items(spec, "initContainers"), *items(spec, "containers")]:
        if any(mount.get("mountPath") == TOKEN_MOUNT for mount in items(container, "volumeMounts")):
            continue
        mount = {"name": name, "readOnly": True, "mountPath": TOKEN_MOUNT}
        container.setdefault("volumeMounts", []).append(mount)
        used = True
    if used and not volume_name:
        spec.setdefault("volumes", []).append({"name": name, "projected": _token_volume()})


def _token_volume() -> Obj:
    namespace = {"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}
    return {
        "sources": [
            {"serviceAccountToken": {"expirationSeconds": TOKEN_SECONDS, "path": "token"}},
            {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
            {"downwardAPI": {"items": [namespace]}},
        ],
        "defaultMode": FILE_MODE,
    }


def quality_of_service(spec: Obj) -> str:
    """Return the QoS class. Source: kubernetes pkg/apis/core/v1/helper/qos."""
    guaranteed, anything = True, False
    for container in [*items(spec, "initContainers"), *items(spec, "containers")]:
        resources = section(container, "resources")
        requests, limits = section(resources, "requests"), section(resources, "limits")
        for name in _QOS_RESOURCES:
            request, limit = _amount(requests.get(name)), _amount(limits.get(name))
            anything = anything or bool(request) or bool(limit)
            guaranteed = guaranteed and bool(limit) and (not request or request == limit)
    if not anything:
        return "BestEffort"
    return "Guaranteed" if guaranteed else "Burstable"


def _amount(quantity: Any) -> Any:
    try:
        return parse_quantity(quantity) if quantity is not None else 0
    except QuantityError:
        return 0
