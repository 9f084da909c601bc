"""The CustomResourceDefinitions of our kinds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import msgspec

from muster.api import rules
from muster.api.address_block import AddressBlock, AddressBlockSpec, AddressPool, AddressPoolSpec
from muster.api.names import GROUP, VERSION
from muster.api.node_health import NodeHealth, NodeHealthSpec, NodeHealthStatus
from muster.api.node_remediation import NodeRemediation, NodeRemediationSpec, NodeRemediationStatus
from muster.api.placement import Placement, PlacementSpec, PlacementStatus
from muster.api.preflight import Preflight, PreflightSpec
from muster.api.rules import Rule
from muster.api.run_history import RunHistory, RunHistorySpec
from muster.api.schema import Schema, struct_schema
from muster.api.training_job import TrainingJob, TrainingJobSpec
from muster.api.training_job_status import TrainingJobStatus
from muster.kube.objects.meta import Resource
from muster.kube.objects.struct import KubeStruct


class Column(NamedTuple):
    """A column of `kubectl get`; priority 1 shows with -o wide only."""

    name: str
    type: str
    path: str
    description: str
    priority: int = 0


class Kind(NamedTuple):
    """Everything that describes one of our kinds to others."""

    resource: Resource
    summary: str
    spec: type[KubeStruct]
    status: type[KubeStruct] | None
    """None: the kind has a spec only, which a single program writes."""
    short_names: tuple[str, ...]
    columns: tuple[Column, ...]
    rules: tuple[Rule, ...] = ()
    spec_rules: tuple[Rule, ...] = ()


_AGE: Final = Column("AGE", "date", ".metadata.creationTimestamp", "Time since it was created.")

KINDS: Final = (
    Kind(
        resource=TrainingJob.RESOURCE,
        summary=TrainingJob.__doc__ or "",
        spec=TrainingJobSpec,
        status=TrainingJobStatus,
        short_names=("tj",),
        columns=(
            Column("NODES", "integer", ".spec.replicas", "Nodes of the gang."),
            Column("READY", "integer", ".status.readySlots", "Slots whose supervisor has joined."),
            Column("PHASE", "string", ".status.phase", "The phase of the job."),
            Column("ATTEMPT", "integer", ".status.ranAttempt", "Number of the newest attempt that ran."),
            Column("STEP", "integer", ".status.progress.step", "The newest step reported."),
            Column("RESTARTS", "integer", ".status.restarts.total", "All restarts so far."),
            _AGE,
            Column("LAUNCHER", "string", ".spec.launcher", "How ranks start.", 1),
            Column("MESSAGE", "string", ".status.message", "What the job does or waits for.", 1),
        ),
        rules=rules.TRAINING_JOB,
        spec_rules=(*rules.TRAINING_JOB_SPEC, *rules.STORES),
    ),
    Kind(
        resource=Placement.RESOURCE,
        summary=Placement.__doc__ or "",
        spec=PlacementSpec,
        status=PlacementStatus,
        short_names=("pl",),
        columns=(
            Column("GANG", "string", ".spec.gang", "The gang."),
            Column("SIZE", "integer", ".spec.size", "Number of members."),
            Column("REVISION", "integer", ".spec.attempt", "Revision of the plan."),
            Column("PHASE", "string", ".status.phase", "The progress of the plan."),
            _AGE,
        ),
    ),
    Kind(
        resource=NodeHealth.RESOURCE,
        summary=NodeHealth.__doc__ or "",
        spec=NodeHealthSpec,
        status=NodeHealthStatus,
        short_names=("nh",),
        columns=(
            Column("GPUS", "integer", ".status.gpus", "GPUs that the driver has."),
            Column("DRIVER", "string", ".status.driver", "Version of the GPU driver."),
            Column("WRITTEN", "date", ".status.time", "Time since the agent wrote this."),
            Column("LATEST", "string", ".status.findings[-1].code", "Code of the newest finding."),
            Column("DROPPED", "integer", ".status.dropped", "Number of older findings that are not listed."),
            Column("AGENT", "string", ".status.agentVersion", "Version of the agent."),
            _AGE,
            Column("BOOT", "string", ".status.bootID", "ID of the boot in which the findings were seen.", 1),
            Column("POLICY", "string", ".status.policyVersion", "Revision of the policy that the agent uses.", 1),
        ),
    ),
    Kind(
        resource=Preflight.RESOURCE,
        summary=Preflight.__doc__ or "",
        spec=PreflightSpec,
        status=None,
        short_names=("pf",),
        columns=(
            Column("PASSED", "boolean", ".spec.passed", "Whether all tests were passed."),
            Column("LEVEL", "integer", ".spec.level", "Level of the tests."),
            Column("TESTED", "date", ".spec.time", "Since they ended."),
            Column("DRIVER", "string", ".spec.driver", "Version of the GPU driver."),
            _AGE,
            Column("BOOT", "string", ".spec.bootID", "The boot in which it was tested.", 1),
        ),
    ),
    Kind(
        resource=NodeRemediation.RESOURCE,
        summary=NodeRemediation.__doc__ or "",
        spec=NodeRemediationSpec,
        status=NodeRemediationStatus,
        short_names=("nr",),
        columns=(
            Column("NODE", "string", ".spec.node", "The node."),
            Column("STATE", "string", ".status.state", "Whether the controller works on the node."),
            Column("RUNG", "string", ".status.rung", "The present rung of the ladder."),
            Column("SINCE", "date", ".status.since", "Time since the rung was entered."),
            Column("BY", "string", ".spec.request.by", "The user who made the newest request."),
            _AGE,
            Column("MESSAGE", "string", ".status.message", "What the controller does or waits for.", 1),
        ),
        spec_rules=rules.NODE_REMEDIATION_SPEC,
    ),
    Kind(
        resource=RunHistory.RESOURCE,
        summary=RunHistory.__doc__ or "",
        spec=RunHistorySpec,
        status=None,
        short_names=("rh",),
        columns=(_AGE,),
    ),
    Kind(
        resource=AddressPool.RESOURCE,
        summary=AddressPool.__doc__ or "",
        spec=AddressPoolSpec,
        status=None,
        short_names=("ap",),
        columns=(
            Column("CIDR", "string", ".spec.cidr", "The range."),
            Column("BLOCK", "integer", ".spec.blockPrefix", "Length of the prefix of a block."),
            _AGE,
        ),
        spec_rules=rules.ADDRESS_POOL_SPEC,
    ),
    Kind(
        resource=AddressBlock.RESOURCE,
        summary=AddressBlock.__doc__ or "",
        spec=AddressBlockSpec,
        status=None,
        short_names=("ab",),
        columns=(
            Column("CIDR", "string", ".spec.cidr", "The addresses."),
            Column("NODE", "string", ".spec.nodeName", "The node that holds them."),
            Column("POOL", "string", ".spec.pool", "The pool."),
            _AGE,
        ),
        spec_rules=rules.ADDRESS_BLOCK_SPEC,
    ),
)


def object_schema(kind: Kind) -> Schema:
    """The structural schema of a whole object of this kind."""
    spec = struct_schema(kind.spec, defaults=True)
    if kind.spec_rules:
        spec["x-kubernetes-validations"] = _rules(kind.spec_rules)
    schema: Schema = {
        "type": "object",
        "description": kind.summary,
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": spec,
        },
    }
    if not spec["properties"]:
        del schema["required"]
    if kind.status is not None:
        schema["properties"]["status"] = _status_schema(kind, kind.status)
    if kind.rules:
        schema["x-kubernetes-validations"] = _rules(kind.rules)
    return schema


def _status_schema(kind: Kind, status: type[KubeStruct]) -> Schema:
    schema = struct_schema(status, defaults=False)
    if "conditions" in schema["properties"]:
        schema["properties"]["conditions"].update(
            {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}
        )
    for name, default in _printed_defaults(kind, status):
        schema["properties"][name]["default"] = default
    return schema


def _printed_defaults(kind: Kind, status: type[KubeStruct]) -> Iterator[tuple[str, str | int]]:
    """Defaults of the printed columns.

    Our writers omit default values, and a column must not be empty for that reason.
    """
    printed = {column.path.removeprefix(".status.") for column in kind.columns}
    for field in msgspec.structs.fields(status):
        if field.encode_name in printed and isinstance(field.default, str | int) and field.default != "":
            yield field.encode_name, field.default


def definition(kind: Kind) -> dict[str, Any]:
    """The CustomResourceDefinition."""
    resource = kind.resource
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{resource.plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced" if resource.namespaced else "Cluster",
            "names": {
                "kind": resource.kind,
                "listKind": f"{resource.kind}List",
                "plural": resource.plural,
                "singular": resource.kind.lower(),
                "shortNames": list(kind.short_names),
                "categories": ["muster"],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}} if kind.status is not None else {},
                    "additionalPrinterColumns": [_column(column) for column in kind.columns],
                    "schema": {"openAPIV3Schema": object_schema(kind)},
                }
            ],
        },
    }


def _rules(rules: tuple[Rule, ...]) -> list[dict[str, str]]:
    return [
        {"rule": rule.cel, "message": rule.message, **({"fieldPath": rule.field} if rule.field else {})}
        for rule in rules
    ]


def _column(column: Column) -> dict[str, Any]:
    out: dict[str, Any] = {
        "name": column.name,
        "type": column.type,
        "jsonPath": column.path,
        "description": column.description,
    }
    if column.priority:
        out["priority"] = column.priority
    return out
