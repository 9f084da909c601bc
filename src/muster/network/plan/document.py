"""Reads and writes the documents of the commands: plans and estates."""

from __future__ import annotations

from typing import Any

import msgspec

from muster.api.configtext import ConfigText, ConfigTextError, place_text
from muster.api.marked import Place
from muster.network.plan.config import PAGE
from muster.network.plan.estate import Estate, estate_of, parse_estate
from muster.network.plan.kinds import Kind, compose, kind_of
from muster.network.plan.plan import Plan
from muster.network.plan.request import PreviousRange


def parse_document(text: str, file: str = "") -> Estate | None:
    """Parse an estate or a plan; None if the text is a kubeconfig. Raises ConfigTextError."""
    root = compose(text, file)
    kind = kind_of(root)
    if kind is Kind.KUBECONFIG:
        return None
    if kind is Kind.REQUEST:
        raise ConfigTextError(
            f"{place_text(Place(1, 1), file)}this is {kind}, without ranges to check; give the plan itself: muster "
            "network plan FILE -o yaml"
        )
    if kind is Kind.PLAN:
        return estate_of(ConfigText(root, Plan, PAGE, file).value)
    return parse_estate(root, file)


def parse_plan(text: str, file: str = "") -> Plan:
    """Parse a plan. Raises ConfigTextError."""
    root = compose(text, file)
    kind = kind_of(root)
    if kind is not Kind.PLAN:
        raise ConfigTextError(
            f"{place_text(Place(1, 1), file)}this is {kind}, not a plan; give a file of muster network plan -o yaml"
        )
    return ConfigText(root, Plan, PAGE, file).value


def plan_data(plan: Plan) -> dict[str, Any]:
    """Return the plan as plain data, for JSON and YAML. Findings are always there, so that programs need no default."""
    data: dict[str, Any] = msgspec.to_builtins(plan)
    return data | {"findings": msgspec.to_builtins(plan.findings)}


def previous_ranges(plan: Plan) -> tuple[PreviousRange, ...]:
    """Return the ranges of a plan, for the request of the next one."""
    masks = {(each.cluster, each.family): each.mask_size for each in plan.node_blocks}
    return tuple(
        PreviousRange(
            each.cluster,
            each.use,
            each.cidr,
            each.grows_to,
            masks[each.cluster, each.family] if each.use == "pods" else 0,
        )
        for each in plan.ranges
    )
