"""API Priority and Fairness: flow schemas and priority levels."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from muster.kube.objects.meta import Condition, KubeObject, Resource
from muster.kube.objects.struct import KubeStruct

_GROUP = "flowcontrol.apiserver.k8s.io"


class ServiceAccountSubject(KubeStruct):
    """A service account; the name `*` means all of the namespace."""

    namespace: str = ""
    name: str = ""


class NamedSubject(KubeStruct):
    """A user or a group; the name `*` means all."""

    name: str = ""


class FlowSubject(KubeStruct):
    """The sender of requests: `kind` is User, Group or ServiceAccount, and the field of that name is set."""

    kind: str = ""
    user: NamedSubject | None = None
    group: NamedSubject | None = None
    service_account: ServiceAccountSubject | None = None


class ResourceRule(KubeStruct):
    """Requests for resources; `*` means all. The API server writes null for lists without entries."""

    verbs: tuple[str, ...] = ()
    api_groups: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    cluster_scope: bool = False
    namespaces: tuple[str, ...] | None = None


class NonResourceRule(KubeStruct):
    """Requests for other paths; `*` means all."""

    verbs: tuple[str, ...] = ()
    non_resource_urls: tuple[str, ...] = msgspec.field(default=(), name="nonResourceURLs")


class FlowRules(KubeStruct):
    """Matches a request of any subject that any of the rules match."""

    subjects: tuple[FlowSubject, ...] = ()
    resource_rules: tuple[ResourceRule, ...] | None = None
    non_resource_rules: tuple[NonResourceRule, ...] | None = None


class LevelReference(KubeStruct):
    """The name of a PriorityLevelConfiguration."""

    name: str = ""


class FlowSchemaSpec(KubeStruct):
    """The requests that it matches, and their level. The lowest precedence has priority, then the first name."""

    priority_level_configuration: LevelReference = msgspec.field(default_factory=LevelReference)
    matching_precedence: int | None = None
    rules: tuple[FlowRules, ...] | None = None


class FlowSchemaStatus(KubeStruct):
    """Conditions; `Dangling` says whether the level is missing."""

    conditions: tuple[Condition, ...] | None = None


class FlowSchema(KubeObject):
    """flowcontrol.apiserver.k8s.io/v1 FlowSchema."""

    RESOURCE: ClassVar[Resource] = Resource(_GROUP, "v1", "flowschemas", "FlowSchema", namespaced=False)

    spec: FlowSchemaSpec = msgspec.field(default_factory=FlowSchemaSpec)
    status: FlowSchemaStatus = msgspec.field(default_factory=FlowSchemaStatus)


class LimitResponse(KubeStruct):
    """What happens to requests over the limit: Reject or Queue."""

    type: str = ""


class LimitedLevel(KubeStruct):
    """A share of the API server's seats, and how much of it may be lent or borrowed, in percent."""

    nominal_concurrency_shares: int | None = None
    limit_response: LimitResponse = msgspec.field(default_factory=LimitResponse)
    lendable_percent: int | None = None
    borrowing_limit_percent: int | None = None


class PriorityLevelSpec(KubeStruct):
    """`type` is Limited or Exempt."""

    type: str = ""
    limited: LimitedLevel | None = None


class PriorityLevelConfiguration(KubeObject):
    """flowcontrol.apiserver.k8s.io/v1 PriorityLevelConfiguration."""

    RESOURCE: ClassVar[Resource] = Resource(
        _GROUP, "v1", "prioritylevelconfigurations", "PriorityLevelConfiguration", namespaced=False
    )

    spec: PriorityLevelSpec = msgspec.field(default_factory=PriorityLevelSpec)
