"""What a block cannot stop, with numbers where metrics show them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from muster.doctor.block.account import Account
from muster.doctor.block.flowschema import PRECEDENCE
from muster.doctor.samples import Page
from muster.kube.objects.flowcontrol import FlowSchema, FlowSubject

WATCHES: Final = "apiserver_longrunning_requests"
DISPATCHED: Final = "apiserver_flowcontrol_dispatched_requests_total"
REJECTED: Final = "apiserver_flowcontrol_rejected_requests_total"
FAMILIES: Final = frozenset({WATCHES, DISPATCHED, REJECTED})


class Escape(msgspec.Struct, frozen=True):
    """Requests that the block does not stop.

    Attributes:
        id: oneAtATime, openRequests, flowSchema, otherUser or readCache. Stable for scripts.
        what: one or two sentences for people.
        count: the number from metrics; None if they do not show it.
        source: the metric.
    """

    id: str
    what: str
    count: float | None = None
    source: str = ""


def escapes(account: Account, schemas: Iterable[FlowSchema], page: Page | None) -> list[Escape]:
    """Return what a block of `account` does not stop.

    Args:
        account: the blocked account.
        schemas: all FlowSchemas that could be read.
        page: metrics of one API server; None if they could not be read.
    """
    open_ = _sum(page, WATCHES, verb="WATCH")
    shown = f" {open_:,.0f} watches of all clients are open on this API server." if open_ is not None else ""
    found = [
        Escape(
            "oneAtATime",
            "One request at a time, on each API server, for all blocked accounts together: API Priority and Fairness "
            "has no level that executes nothing. To stop those too, delete the account's pods or its role bindings.",
        ),
        Escape(
            "openRequests",
            "Watches that are open stay open, and so do exec, attach, port-forward and followed logs, also new ones. "
            "Delete the account's pods to end them." + shown,
            open_,
            WATCHES if open_ is not None else "",
        ),
    ]
    for schema in sorted(_before(account, schemas), key=lambda each: (each.spec.matching_precedence or 0, each.name)):
        level = schema.spec.priority_level_configuration.name
        count = _sum(page, DISPATCHED, flow_schema=schema.name)
        served = f" It served {count:,.0f} requests of all clients so far." if count is not None else ""
        what = f"Requests that FlowSchema {schema.name} matches get level {level} first.{served}"
        found.append(Escape("flowSchema", what, count, DISPATCHED if count is not None else ""))
    found.append(
        Escape(
            "otherUser",
            "Requests as another user: if the account impersonates one, or if its program has other credentials."
            + (" If this user is in system:masters, nothing of it is stopped." if not account.namespace else ""),
        )
    )
    found.append(Escape("readCache", "Reads that Muster's read cache answers do not reach the API server."))
    return found


def rejected(object_name: str, page: Page | None) -> float | None:
    """Return how many requests one API server rejected for a block; None if metrics do not show it."""
    return _sum(page, REJECTED, flow_schema=object_name)


def _before(account: Account, schemas: Iterable[FlowSchema]) -> Iterator[FlowSchema]:
    for schema in schemas:
        precedence = schema.spec.matching_precedence
        order = (precedence if precedence is not None else 1000, schema.name)
        if schema.name != account.object_name and order < (PRECEDENCE, account.object_name):
            subjects = (subject for rules in schema.spec.rules or () for subject in rules.subjects)
            if any(_matches(account, subject) for subject in subjects):
                yield schema


def _matches(account: Account, subject: FlowSubject) -> bool:
    if subject.user is not None:
        return subject.user.name in ("*", account.user)
    if subject.group is not None:
        return subject.group.name == "*" or subject.group.name in account.groups
    of = subject.service_account
    return of is not None and account.namespace == of.namespace and of.name in ("*", account.name)


def _sum(page: Page | None, name: str, **labels: str) -> float | None:
    if page is None or name not in page.series:
        return None
    return sum(value for found, value in page.of(name) if labels.items() <= found.items())
