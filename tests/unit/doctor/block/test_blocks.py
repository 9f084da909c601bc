"""Blocks: accounts, objects, what escapes, and when they end."""

from __future__ import annotations

import msgspec
import pytest

from muster.doctor.block.account import Account, AccountError, account_of, why_protected
from muster.doctor.block.block import Block
from muster.doctor.block.blocking import BlockError, Readiness, check, check_level
from muster.doctor.block.decide import decide
from muster.doctor.block.escapes import FAMILIES, escapes, rejected
from muster.doctor.block.flowschema import ANNOTATION_EXPIRES, block_of, level, schema_of, why_ineffective
from muster.doctor.samples import parse
from muster.kube.objects.flowcontrol import (
    FlowRules,
    FlowSchema,
    FlowSchemaSpec,
    FlowSubject,
    LevelReference,
    LimitResponse,
    NamedSubject,
)
from muster.kube.objects.meta import ObjectMeta
from muster.kube.objects.struct import decode, encode

NOISY = Account("agents", "noisy")


@pytest.mark.parametrize(
    ("text", "account"),
    [("agents/noisy", NOISY), ("noisy", Account("default", "noisy")), ("a/b.c", Account("a", "b.c"))],
)
def test_service_account_is_parsed(text: str, account: Account) -> None:
    assert Account.parse(text, "default") == account


@pytest.mark.parametrize("text", ["", "a/", "a/b/c", "A/b", "a/*", "a/b_c", "*/b", "a/" + "b" * 254])
def test_other_names_are_refused(text: str) -> None:
    with pytest.raises(AccountError, match="NAMESPACE/NAME"):
        Account.parse(text, "default")


def test_user_name_of_a_service_account_is_that_account() -> None:
    assert Account.of_user("system:serviceaccount:agents:noisy") == NOISY
    assert Account.of_user("alice@example.com").user == "alice@example.com"
    for bad in ("", " ", "*", "a\nb", "x" * 2000, "system:serviceaccount:agents"):
        with pytest.raises(AccountError):
            Account.of_user(bad)


def test_names_of_objects_differ_for_accounts_that_look_alike() -> None:
    accounts = [Account("a-b", "c"), Account("a", "b-c"), Account("a", "b.c"), Account("", "a.b.c"), Account("", "A")]
    accounts += [Account("n" * 63, "s" * 253), Account("n" * 63, "s" * 252)]
    names = [account.object_name for account in accounts]
    assert len(set(names)) == len(names)
    assert max(map(len, names)) <= 253


@pytest.mark.parametrize("account", [NOISY, Account("", "alice")])
def test_block_survives_the_wire(account: Account) -> None:
    schema = decode(encode(schema_of(account, 1_800_000_000)), FlowSchema)
    block = block_of(schema)
    assert (block.account, block.expires_at) == (account, 1_800_000_000)
    assert account_of(schema.spec.rules[0].subjects[0]) == account  # type: ignore[index]


@pytest.mark.parametrize("text", ["", "soon", "2026-13-01T00:00:00Z"])
def test_block_without_a_valid_end_has_ended(text: str) -> None:
    schema = schema_of(NOISY, 4e9)
    meta = msgspec.structs.replace(schema.metadata, annotations={ANNOTATION_EXPIRES: text})
    block = block_of(msgspec.structs.replace(schema, metadata=meta))
    assert decide([block], 1.0).removals == (block,)


def test_only_ended_blocks_are_removed_and_the_next_end_wakes() -> None:
    first, second, third = (Block(name, "", "", None, end) for name, end in (("c", 10.0), ("b", 20.0), ("a", 30.0)))
    plan = decide([third, first, second], 20.0)
    assert (plan.removals, plan.wake_at) == ((first, second), 30.0)
    assert decide([], 20.0).wake_at is None


@pytest.mark.parametrize(
    "account",
    [
        Account("kube-system", "node-controller"),
        Account("muster-system", "muster-controller"),
        Account("", "system:node:node-1"),
        Account("", "system:kube-scheduler"),
        Account("agents", "me"),
    ],
)
def test_protected_accounts_need_force(account: Account) -> None:
    caller = "system:serviceaccount:agents:me"
    assert why_protected(account, {"muster-system"}, caller)
    assert not why_protected(NOISY, {"muster-system"}, caller)
    assert not why_protected(NOISY, {"muster-system"}, "")
    with pytest.raises(BlockError, match="is protected"):
        check(account, Readiness(caller, True, level()), frozenset({"muster-system"}))


def test_account_that_does_not_exist_is_refused_only_if_that_is_certain() -> None:
    with pytest.raises(BlockError, match="there is no"):
        check(NOISY, Readiness("", False, level()), frozenset())
    check(NOISY, Readiness("", None, level()), frozenset())


def test_level_that_would_let_requests_through_is_refused() -> None:
    check_level(level())
    with pytest.raises(BlockError, match="does not exist"):
        check_level(None)
    limited = level().spec.limited
    assert limited is not None
    for change in (
        {"nominal_concurrency_shares": 30},
        {"nominal_concurrency_shares": None},
        {"borrowing_limit_percent": None},
        {"limit_response": LimitResponse(type="Queue")},
    ):
        spec = msgspec.structs.replace(level().spec, limited=msgspec.structs.replace(limited, **change))
        found = msgspec.structs.replace(level(), spec=spec)
        assert why_ineffective(found), change
    assert why_ineffective(msgspec.structs.replace(level(), spec=msgspec.structs.replace(level().spec, type="Exempt")))


def schema(name: str, precedence: int, subject: FlowSubject) -> FlowSchema:
    spec = FlowSchemaSpec(
        priority_level_configuration=LevelReference(name="exempt"),
        matching_precedence=precedence,
        rules=(FlowRules(subjects=(subject,)),),
    )
    return FlowSchema(metadata=ObjectMeta(name=name), spec=spec)


def test_earlier_schemas_that_match_the_account_escape() -> None:
    everyone = FlowSubject(kind="Group", group=NamedSubject(name="system:authenticated"))
    masters = FlowSubject(kind="Group", group=NamedSubject(name="system:masters"))
    schemas = [
        schema("probes", 2, everyone),
        schema("exempt", 1, masters),
        schema("a-same-precedence", 10, everyone),
        schema("z-same-precedence", 10, everyone),
        schema("later", 11, everyone),
        schema("own", 3, NOISY.subject),
        schema("other", 3, Account("agents", "other").subject),
    ]
    page = parse(
        'apiserver_flowcontrol_dispatched_requests_total{flow_schema="probes",priority_level="exempt"} 9', FAMILIES
    )
    found = [each for each in escapes(NOISY, schemas, page) if each.id == "flowSchema"]
    assert [(each.what.split()[3], each.count) for each in found] == [
        ("probes", 9.0),
        ("own", 0.0),
        ("a-same-precedence", 0.0),
    ]


def test_numbers_that_are_not_visible_are_absent() -> None:
    assert {each.count for each in escapes(NOISY, (), None)} == {None}
    assert rejected("some", None) is None
    assert rejected("some", parse("", FAMILIES)) is None
    assert any("system:masters" in each.what for each in escapes(Account("", "alice"), (), None))
