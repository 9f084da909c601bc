"""Subresources of pods: binding, eviction, and those that a kubelet answers (log, exec, attach).

Source: kubernetes pkg/registry/core/pod (strategy.go, storage/storage.go, storage/eviction.go).
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import parse_qsl, quote, urlencode

from muster.embedded.apiserver.kinds.pods import set_condition
from muster.embedded.apiserver.request import ProxyResponse
from muster.embedded.apiserver.status import (
    StatusError,
    bad_request,
    conflict,
    forbidden,
    internal,
    invalid_object,
    not_found,
    required,
    stale,
    too_many_requests,
    unsupported,
)
from muster.embedded.apiserver.types.budgets import budgets_for
from muster.embedded.apiserver.types.registry import ResourceType
from muster.embedded.apiserver.types.strategy import Context, DeleteOptions
from muster.embedded.apiserver.verbs.deletes import Deletes, options_of
from muster.embedded.apiserver.verbs.writes import key_of
from muster.embedded.item import Item
from muster.embedded.objects import Obj, items, section, timestamp

_LOG_OPTIONS = ("follow", "previous", "sinceSeconds", "sinceTime", "timestamps", "tailLines", "limitBytes", "stream")
_EXEC_OPTIONS = {"stdin": "input", "stdout": "output", "stderr": "error", "tty": "tty"}  # as kubelets name them


def _violates(why: str, retry_after_s: int = 0) -> StatusError:
    message = "Cannot evict pod as it would violate the pod's disruption budget."
    return too_many_requests(message, [{"reason": "DisruptionBudget", "message": why}], retry_after_s)


class PodSubresources:
    """The subresources of pods."""

    def __init__(self, context: Context, deletes: Deletes, pods: ResourceType) -> None:
        self._context = context
        self._deletes = deletes
        self._pods = pods

    def bind(self, namespace: str, name: str, body: Obj, *, dry_run: bool) -> Obj:
        """Bind a pod to a node.

        Raises:
            StatusError: 404 if the pod does not exist. 422 if the target is not a node. 400 if the body names another
                pod. 409 if the pod is bound, is being deleted, has scheduling gates, or has changed.
        """
        target = section(body, "target")
        errors = []
        if target.get("kind") not in (None, "", "Node"):
            errors.append(unsupported("target.kind", target["kind"], ["Node", "<empty>"]))
        if not target.get("name"):
            errors.append(required("target.name"))
        if errors:  # unlike kube-apiserver, which answers 500 here, answer 422
            raise invalid_object("Binding", "", name, errors)
        meta = section(body, "metadata")
        if meta.get("name") and meta["name"] != name:
            raise bad_request("name in URL does not match name in Binding object")
        obj = self._get(namespace, name).object()
        spec = obj["spec"]
        if meta.get("uid") and meta["uid"] != obj["metadata"]["uid"]:
            key = f"/registry/pods/{key_of(namespace, name)}"
            raise stale("pods", "", name, key, meta["uid"], obj["metadata"]["uid"])
        if meta.get("resourceVersion") and meta["resourceVersion"] != obj["metadata"]["resourceVersion"]:
            raise conflict("pods", "", name)
        if obj["metadata"].get("deletionTimestamp"):
            raise conflict("pods/binding", "", name, f"pod {name} is being deleted, cannot be assigned to a host")
        if spec.get("nodeName"):
            why = f'pod {name} is already assigned to node "{spec["nodeName"]}"'
            raise conflict("pods/binding", "", name, why)
        if items(spec, "schedulingGates"):
            raise conflict("pods/binding", "", name, f"pod {name} has non-empty .spec.schedulingGates")
        spec["nodeName"] = target["name"]
        annotations = section(meta, "annotations")
        if annotations:
            obj["metadata"].setdefault("annotations", {}).update(annotations)
        status = obj.setdefault("status", {})
        status.pop("nominatedNodeName", None)
        set_condition(status, "PodScheduled", "True", self._context.clock.now())
        if not dry_run:
            self._context.store.put("pods", key_of(namespace, name), obj)
        return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}

    def evict(self, namespace: str, name: str, body: Obj, *, dry_run: bool) -> Obj:
        """Delete a pod if its disruption budget allows it.

        Raises:
            StatusError: 429 if the budget does not allow it, 409 if a precondition fails.
        """
        if section(body, "metadata").get("name", name) != name:
            raise bad_request("name in URL does not match name in Eviction object")
        item = self._get(namespace, name)
        asked = options_of(section(body, "deleteOptions"))
        rehearsal = DeleteOptions(asked.grace_s, asked.propagation, asked.uid, asked.version, True)
        dry_run = dry_run or asked.dry_run
        pod = item.object()
        unprotected = section(pod, "status").get("phase") in ("Succeeded", "Failed", "Pending") or item.terminating
        if not unprotected:
            self._spend_budget(pod, name, dry_run=dry_run)
        self._deletes.delete(self._pods, item.key, name, rehearsal)
        if not dry_run:
            # This write changes the pod's resourceVersion. So the delete below must not check `asked.version`; the dry
            # run above has checked it.
            self._mark_evicted(namespace, name)
            options = DeleteOptions(asked.grace_s, asked.propagation, asked.uid)
            self._deletes.delete(self._pods, item.key, name, options)
        return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}

    def _spend_budget(self, pod: Obj, name: str, *, dry_run: bool) -> None:
        found = budgets_for(self._context.store, pod)
        if len(found) > 1:
            message = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
            raise StatusError(500, "", message)
        if not found:
            return
        budget = found[0]
        budget_name = budget["metadata"]["name"]
        status = section(budget, "status")
        current, desired = status.get("currentHealthy", 0), status.get("desiredHealthy", 0)
        healthy = any(
            condition.get("type") == "Ready" and condition.get("status") == "True"
            for condition in items(section(pod, "status"), "conditions")
        )
        always = section(budget, "spec").get("unhealthyPodEvictionPolicy") == "AlwaysAllow"
        if not healthy and (always or (current >= desired and desired > 0)):
            return
        if status.get("observedGeneration", 0) < budget["metadata"].get("generation", 1):
            raise _violates(f"The disruption budget {budget_name} is still being processed by the server.", 10)
        allowed = status.get("disruptionsAllowed", 0)
        if allowed < 0:
            why = "pdb disruptions allowed is negative"
            raise forbidden("poddisruptionbudget", "policy", budget_name, why)
        if allowed == 0:
            needs = f"needs {desired} healthy pods and has {current} currently"
            says = needs if current <= desired else "does not allow evicting pods currently"
            raise _violates(f"The disruption budget {budget_name} {says}")
        if dry_run:
            return
        status = budget.setdefault("status", {})
        status["disruptionsAllowed"] = allowed - 1
        status.setdefault("disruptedPods", {})[name] = timestamp(self._context.clock.now())
        key = key_of(budget["metadata"]["namespace"], budget["metadata"]["name"])
        self._context.store.put("poddisruptionbudgets.policy", key, budget)

    def _mark_evicted(self, namespace: str, name: str) -> None:
        obj = self._get(namespace, name).object()
        now, message = self._context.clock.now(), "Eviction API: evicting"
        set_condition(obj.setdefault("status", {}), "DisruptionTarget", "True", now, "EvictionByEvictionAPI", message)
        self._context.store.put("pods", key_of(namespace, name), obj)

    def proxy(
        self, namespace: str, name: str, subresource: str, query: Mapping[str, str], raw_query: str
    ) -> ProxyResponse:
        """Return the kubelet's address for a request.

        Raises:
            StatusError: 404 if the pod does not exist. 400 if the container does not exist or must be named, or if the
                pod has no node. 500 if the node does not exist or its kubelet's address is not known.
        """
        pod = self._get(namespace, name).object()
        container = self._container(pod, name, query.get("container", ""))
        node = section(pod, "spec").get("nodeName")
        if not node:
            raise bad_request(f"pod {name} does not have a host assigned")
        address, port = self._kubelet(node)
        where = f"{quote(namespace)}/{quote(name)}/{quote(container)}"
        if subresource == "log":
            options = urlencode({key: query[key] for key in _LOG_OPTIONS if key in query})
            return ProxyResponse(address, port, f"/containerLogs/{where}", options, upgrade=False)
        kept = [(option, "1") for key, option in _EXEC_OPTIONS.items() if query.get(key) in ("true", "1")]
        kept += [("command", part) for part in _all(raw_query, "command")]
        return ProxyResponse(address, port, f"/{subresource}/{where}", urlencode(kept), upgrade=True)

    def _container(self, pod: Obj, name: str, asked: str) -> str:
        spec = section(pod, "spec")
        regular = [container["name"] for container in items(spec, "containers")]
        initial = [container["name"] for container in items(spec, "initContainers")]
        if not asked:
            if len(regular) == 1:
                return str(regular[0])
            choices = " ".join(regular)
            more = f" or one of the init containers: [{' '.join(initial)}]" if initial else ""
            raise bad_request(f"a container name must be specified for pod {name}, choose one of: [{choices}]{more}")
        if asked not in [*regular, *initial]:
            raise bad_request(f"container {asked} is not valid for pod {name}")
        return asked

    def _kubelet(self, node: str) -> tuple[str, int]:
        item = self._context.store.define("nodes").items.get(node)
        if item is None:
            raise internal(f"no such node: {node}")
        status = section(item.object(), "status")
        port = section(section(status, "daemonEndpoints"), "kubeletEndpoint").get("Port")
        for address in items(status, "addresses"):
            if address.get("type") == "InternalIP" and port:
                return str(address["address"]), int(port)
        raise StatusError(500, "InternalError", f"node {node} has not reported a kubelet address and port yet")

    def _get(self, namespace: str, name: str) -> Item:
        item = self._context.store.define("pods").items.get(key_of(namespace, name))
        if item is None:
            raise not_found("pods", "", name)
        return item


def _all(raw_query: str, name: str) -> list[str]:
    return [value for key, value in parse_qsl(raw_query, keep_blank_values=True) if key == name]
