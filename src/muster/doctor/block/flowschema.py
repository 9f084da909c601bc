"""A block as the API server stores it: a FlowSchema that sends one account's requests to a level without shares."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from muster.doctor.block.account import Account, account_of
from muster.doctor.block.block import LEVEL, Block
from muster.kube.clock import instant
from muster.kube.objects.flowcontrol import (
    FlowRules,
    FlowSchema,
    FlowSchemaSpec,
    LevelReference,
    LimitedLevel,
    LimitResponse,
    NonResourceRule,
    PriorityLevelConfiguration,
    PriorityLevelSpec,
    ResourceRule,
)
from muster.kube.objects.meta import ObjectMeta

LABEL_BLOCK: Final = "muster.dev/block"
"""`true` on the FlowSchemas of blocks."""
SELECTOR: Final = f"{LABEL_BLOCK}=true"
ANNOTATION_EXPIRES: Final = "muster.dev/expires-at"
"""On the FlowSchema of a block: when it ends, RFC 3339, by the API server's clock."""
ANNOTATION_REMOVER: Final = "muster.dev/expired-blocks-removed-by"
"""`muster-controller` on the level if a controller removes expired blocks. The chart sets it together with the
controller's option."""
REMOVER: Final = "muster-controller"
PRECEDENCE: Final = 10
"""Before all FlowSchemas of Kubernetes but `exempt` (1, system:masters) and `probes` (2, health checks)."""
_ALL: Final = ("*",)


def schema_of(account: Account, expires_at: float) -> FlowSchema:
    """Return the FlowSchema that blocks an account until `expires_at`, in seconds since 1970."""
    rules = FlowRules(
        subjects=(account.subject,),
        resource_rules=(
            ResourceRule(verbs=_ALL, api_groups=_ALL, resources=_ALL, cluster_scope=True, namespaces=_ALL),
        ),
        non_resource_rules=(NonResourceRule(verbs=_ALL, non_resource_urls=_ALL),),
    )
    return FlowSchema(
        metadata=ObjectMeta(
            name=account.object_name,
            labels={LABEL_BLOCK: "true"},
            annotations={ANNOTATION_EXPIRES: instant(expires_at)},
        ),
        spec=FlowSchemaSpec(
            priority_level_configuration=LevelReference(name=LEVEL), matching_precedence=PRECEDENCE, rules=(rules,)
        ),
    )


def block_of(schema: FlowSchema) -> Block:
    """Read a block from its FlowSchema. An annotation that is not valid counts as expired, so that it is removed."""
    subjects = [subject for rules in schema.spec.rules or () for subject in rules.subjects]
    meta = schema.metadata
    return Block(
        object_name=meta.name,
        uid=meta.uid,
        version=meta.resource_version,
        account=account_of(subjects[0]) if len(subjects) == 1 else None,
        expires_at=_seconds(meta.annotations.get(ANNOTATION_EXPIRES, "")),
        level=schema.spec.priority_level_configuration.name,
    )


def level() -> PriorityLevelConfiguration:
    """Return the level of blocked accounts: no shares, no seats of other levels, no queue.

    kube-apiserver still executes one request of such a level at a time, and answers the others with 429 at once
    (k8s.io/apiserver, fairqueuing/queueset, canAccommodateSeatsLocked). All blocked accounts share this one.
    """
    limited = LimitedLevel(
        nominal_concurrency_shares=0,
        lendable_percent=0,
        borrowing_limit_percent=0,
        limit_response=LimitResponse(type="Reject"),
    )
    return PriorityLevelConfiguration(
        metadata=ObjectMeta(name=LEVEL), spec=PriorityLevelSpec(type="Limited", limited=limited)
    )


def why_ineffective(found: PriorityLevelConfiguration) -> str:
    """Return why this level would not stop its requests; "" if it does."""
    limited = found.spec.limited
    if found.spec.type != "Limited" or limited is None:
        return f"its type is {found.spec.type}"
    if limited.limit_response.type != "Reject":
        return "it queues requests instead of rejecting them"
    if limited.nominal_concurrency_shares is None or limited.nominal_concurrency_shares > 1:
        return f"it has {limited.nominal_concurrency_shares} shares of the API server's seats"
    if limited.borrowing_limit_percent != 0:
        return "it may borrow seats of other levels"
    return ""


def _seconds(text: str) -> float:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return 0.0
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
