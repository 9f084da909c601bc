"""The built-in kinds."""

from __future__ import annotations

from functools import partial

from muster.embedded.apiserver.kinds.cluster import (
    NamespaceStrategy,
    NodeStrategy,
    PriorityClassStrategy,
    QuotaStrategy,
)
from muster.embedded.apiserver.kinds.core import (
    ConfigMapStrategy,
    EventStrategy,
    RbacStrategy,
    ReturningStrategy,
    SecretStrategy,
    ServiceAccountStrategy,
    ServiceStrategy,
    SpecStrategy,
    StoredStrategy,
)
from muster.embedded.apiserver.kinds.crds import CrdStrategy
from muster.embedded.apiserver.kinds.pods import PodStrategy
from muster.embedded.apiserver.types.registry import (
    ALL_VERBS,
    EVENT_FIELDS,
    POD_FIELDS,
    ResourceType,
    Subresource,
    event_fields,
    namespace_fields,
    node_fields,
    pod_fields,
    secret_fields,
    service_fields,
    status_of,
)

CREATE_ONLY = ("create",)


def _core() -> list[ResourceType]:
    core = partial(ResourceType, "", "v1")
    return [
        core("configmaps", "ConfigMap", strategy=ConfigMapStrategy(), short_names=("cm",)),
        core(
            "events",
            "Event",
            strategy=EventStrategy(),
            short_names=("ev",),
            read_fields=event_fields,
            fields=EVENT_FIELDS,
            known_fields_message=False,
            storage_name="events",
        ),
        core(
            "namespaces",
            "Namespace",
            namespaced=False,
            strategy=NamespaceStrategy(),
            short_names=("ns",),
            verbs=tuple(verb for verb in ALL_VERBS if verb != "deletecollection"),
            subresources=(Subresource("finalize", "Namespace", ("update",)), status_of("Namespace")),
            read_fields=namespace_fields,
            fields=("status.phase", "name"),
            known_fields_message=False,
        ),
        core(
            "nodes",
            "Node",
            namespaced=False,
            strategy=NodeStrategy(),
            short_names=("no",),
            subresources=(status_of("Node"),),
            read_fields=node_fields,
            fields=("spec.unschedulable",),
            known_fields_message=False,
        ),
        core(
            "persistentvolumeclaims",
            "PersistentVolumeClaim",
            strategy=ReturningStrategy(),
            short_names=("pvc",),
            subresources=(status_of("PersistentVolumeClaim"),),
        ),
        core(
            "persistentvolumes",
            "PersistentVolume",
            namespaced=False,
            strategy=ReturningStrategy(),
            short_names=("pv",),
            subresources=(status_of("PersistentVolume"),),
        ),
        core(
            "pods",
            "Pod",
            strategy=PodStrategy(),
            short_names=("po",),
            categories=("all",),
            subresources=(
                Subresource("attach", "PodAttachOptions", ("create", "get")),
                Subresource("binding", "Binding", CREATE_ONLY),
                Subresource("eviction", "Eviction", CREATE_ONLY, "policy", "v1"),
                Subresource("exec", "PodExecOptions", ("create", "get")),
                Subresource("log", "Pod", ("get",)),
                status_of("Pod"),
            ),
            read_fields=pod_fields,
            fields=POD_FIELDS,
            known_fields_message=False,
            indexes=("spec.nodeName",),
        ),
        core(
            "resourcequotas",
            "ResourceQuota",
            strategy=QuotaStrategy(),
            short_names=("quota",),
            subresources=(status_of("ResourceQuota"),),
        ),
        core(
            "secrets",
            "Secret",
            strategy=SecretStrategy(),
            read_fields=secret_fields,
            fields=("type",),
            known_fields_message=False,
        ),
        core(
            "serviceaccounts",
            "ServiceAccount",
            strategy=ServiceAccountStrategy(),
            short_names=("sa",),
            subresources=(Subresource("token", "TokenRequest", CREATE_ONLY, "authentication.k8s.io", "v1"),),
        ),
        core(
            "services",
            "Service",
            strategy=ServiceStrategy(),
            short_names=("svc",),
            categories=("all",),
            subresources=(status_of("Service"),),
            read_fields=service_fields,
            fields=("spec.clusterIP", "spec.type"),
            known_fields_message=False,
        ),
    ]


def _groups() -> list[ResourceType]:
    rbac, admission = "rbac.authorization.k8s.io", "admissionregistration.k8s.io"
    return [
        ResourceType(
            "events.k8s.io",
            "v1",
            "events",
            "Event",
            strategy=EventStrategy(),
            short_names=("ev",),
            read_fields=event_fields,
            fields=EVENT_FIELDS,
            known_fields_message=False,
            storage_name="events",
        ),
        ResourceType("coordination.k8s.io", "v1", "leases", "Lease", strategy=StoredStrategy()),
        ResourceType(
            "scheduling.k8s.io",
            "v1",
            "priorityclasses",
            "PriorityClass",
            namespaced=False,
            strategy=PriorityClassStrategy(),
            short_names=("pc",),
        ),
        ResourceType(
            "policy",
            "v1",
            "poddisruptionbudgets",
            "PodDisruptionBudget",
            strategy=SpecStrategy(),
            short_names=("pdb",),
            subresources=(status_of("PodDisruptionBudget"),),
        ),
        ResourceType(
            "apiextensions.k8s.io",
            "v1",
            "customresourcedefinitions",
            "CustomResourceDefinition",
            namespaced=False,
            strategy=CrdStrategy(),
            short_names=("crd", "crds"),
            categories=("api-extensions",),
            subresources=(status_of("CustomResourceDefinition"),),
        ),
        ResourceType(rbac, "v1", "clusterroles", "ClusterRole", namespaced=False, strategy=RbacStrategy()),
        ResourceType(
            rbac, "v1", "clusterrolebindings", "ClusterRoleBinding", namespaced=False, strategy=RbacStrategy()
        ),
        ResourceType(rbac, "v1", "roles", "Role", strategy=RbacStrategy()),
        ResourceType(rbac, "v1", "rolebindings", "RoleBinding", strategy=RbacStrategy()),
        ResourceType(
            admission,
            "v1",
            "validatingadmissionpolicies",
            "ValidatingAdmissionPolicy",
            namespaced=False,
            strategy=SpecStrategy(),
            categories=("api-extensions",),
            subresources=(status_of("ValidatingAdmissionPolicy"),),
        ),
        ResourceType(
            admission,
            "v1",
            "validatingadmissionpolicybindings",
            "ValidatingAdmissionPolicyBinding",
            namespaced=False,
            strategy=SpecStrategy(),
            categories=("api-extensions",),
        ),
        *_reviews(),
    ]


def _reviews() -> list[ResourceType]:
    authentication, authorization = "authentication.k8s.io", "authorization.k8s.io"
    names = [
        (authentication, "tokenreviews", "TokenReview", False),
        (authentication, "selfsubjectreviews", "SelfSubjectReview", False),
        (authorization, "subjectaccessreviews", "SubjectAccessReview", False),
        (authorization, "selfsubjectaccessreviews", "SelfSubjectAccessReview", False),
        (authorization, "localsubjectaccessreviews", "LocalSubjectAccessReview", True),
        (authorization, "selfsubjectrulesreviews", "SelfSubjectRulesReview", False),
    ]
    return [
        ResourceType(group, "v1", plural, kind, namespaced=namespaced, verbs=CREATE_ONLY)
        for group, plural, kind, namespaced in names
    ]


def builtin_types() -> tuple[ResourceType, ...]:
    """Create the built-in types; each server has its own copies."""
    return (*_core(), *_groups())
