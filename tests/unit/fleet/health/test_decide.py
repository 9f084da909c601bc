"""What is done about findings: each workflow of the shipped policy, and what must never happen whatever was seen."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.fleet.health.decide import Decision, History, decide
from muster.fleet.health.explain import lines
from muster.fleet.health.finding import Finding
from muster.fleet.health.policy import DAY_S, RANK, Policy
from muster.fleet.health.policytext import default_policy, read_policy

NOW_S = 1_800_000_000.0
HOUR_S = 3600.0


def seen(
    check: str, code: str, ago_s: float = 0.0, gpu: str = "gpu-1", count: int = 1, lasts_s: float = 0.0
) -> Finding:
    first_s = NOW_S - ago_s
    return Finding(check=check, component=gpu, code=code, count=count, first_s=first_s, last_s=first_s + lasts_s)


def xid(code: int | str, ago_s: float = 0.0, gpu: str = "gpu-1") -> Finding:
    return seen("xid", str(code), ago_s, gpu)


def judge(*findings: Finding, cleared_s: float = 0.0, remediations: tuple[float, ...] = ()) -> Decision:
    history = History(cleared_s=cleared_s, remediations_s=tuple(NOW_S - ago_s for ago_s in remediations))
    return decide(findings, history, default_policy(), NOW_S)


def test_nothing_seen_nothing_done() -> None:
    assert judge() == Decision()


@pytest.mark.parametrize(
    ("findings", "action", "rule", "fault"),
    [
        ([xid(79)], "reboot", "xid/79", "hardware"),
        ([xid(63)], "condition", "xid/63", "hardware"),
        ([xid(999)], "quarantine", "xid/unknown", "unknown"),
        ([seen("tomorrow", "x")], "condition", "unknown", "unknown"),
        # 31 and 13: the same GPU again is suspect, different GPUs at the same time are the program
        ([xid(31)], "observe", "xid/31", "application"),
        ([xid(31), xid(31, HOUR_S)], "quarantine", "xid-31-same-gpu", "hardware"),
        ([xid(31), xid(31, HOUR_S, "gpu-2")], "observe", "xid/31", "application"),
        (
            [xid(31), xid(31, 5, "gpu-2"), xid(31, HOUR_S), xid(31, HOUR_S, "gpu-2")],
            "observe",
            "xid-31-different-gpus",
            "application",
        ),
        (
            [xid(31), xid(31, HOUR_S), xid(31, 2 * HOUR_S), xid(31, 0, "gpu-2")],
            "quarantine",
            "xid-31-same-gpu",
            "hardware",
        ),
        ([xid(13), xid(13, HOUR_S)], "quarantine", "xid-13-same-gpu", "hardware"),
        ([xid(31), xid(31, DAY_S + 1)], "observe", "xid/31", "application"),
        # 45 alone is the fabric manager; after another error it is that error's
        ([xid(45)], "condition", "xid/45", "software"),
        ([xid(45), xid(31, 5)], "observe", "xid/31", "application"),
        ([xid(45), xid(48, 30)], "reset-gpu", "xid/48", "hardware"),
        ([xid(45), xid(31, 5, "gpu-2")], "condition", "xid/45", "software"),
        # 48, 74, 79: resets, and hands when they do not help
        ([xid(48), xid(63, 5)], "reset-gpu", "xid-48-with-63-or-64", "hardware"),
        ([xid(48), xid(48, DAY_S), xid(95, 2 * DAY_S)], "replace", "xid-48-again", "hardware"),
        ([xid(74)], "reset-gpu", "xid/74", "hardware"),
        ([xid(74), xid(74, 2 * DAY_S)], "replace", "xid-74-again", "hardware"),
        ([xid(79), xid(79, 2 * DAY_S)], "replace", "xid-79-again", "hardware"),
        # 154 asks for what it asks for
        ([xid("154/none")], "observe", "xid/154/none", "unknown"),
        ([xid("154/node-reboot"), xid(95)], "reboot", "xid/154/node-reboot", "hardware"),
        # NVLink 5
        ([xid("149/fatal/NETIR_LINK_EVT/0x00000000")], "reset-gpu", "xid/149/fatal", "hardware"),
        (
            [xid("145/nonfatal/RLW_CTRL/0x80000000", 60.0 * n) for n in range(10)],
            "quarantine",
            "xid-144-150-nonfatal-often",
            "hardware",
        ),
        # five fatal ones in a day
        ([xid(code, HOUR_S * n) for n, code in enumerate((46, 62, 64, 109, 143))], "human", "fatal-xids", "hardware"),
        ([xid(31, HOUR_S * n, f"gpu-{n}") for n in range(5)], "observe", "xid/31", "application"),
        ([seen("sxid", "fatal/20034")], "reboot", "sxid/fatal", "hardware"),
        ([seen("sxid", "nonfatal/12028")], "observe", "sxid/nonfatal", "hardware"),
        ([seen("nvrm", "fallen-off-bus"), xid(79)], "reboot", "nvrm/fallen-off-bus", "hardware"),
        # ports: fatal counters, and symbol errors above 120 an hour
        ([seen("port", "link_downed")], "quarantine", "port/link_downed", "hardware"),
        ([seen("port", "rnr_nak_retry_err")], "quarantine", "port/rnr_nak_retry_err", "hardware"),
        ([seen("port", "symbol_error", count=120)], "observe", "port/symbol_error", "hardware"),
        (
            [seen("port", "symbol_error", count=60), seen("port", "symbol_error", 1800, count=61)],
            "quarantine",
            "port-symbol-errors",
            "hardware",
        ),
        (
            [seen("port", "symbol_error", count=60), seen("port", "symbol_error", 3700, count=61)],
            "observe",
            "port/symbol_error",
            "hardware",
        ),
        (
            [seen("port", "symbol_error", gpu="a", count=70), seen("port", "symbol_error", gpu="b", count=70)],
            "observe",
            "port/symbol_error",
            "hardware",
        ),
        ([seen("throttle", "hw-thermal", count=60)], "quarantine", "throttled-long", "hardware"),
        ([seen("throttle", "sw-thermal", gpu=f"gpu-{n}") for n in range(4)], "condition", "throttled-node", "hardware"),
        ([seen("rows", "failed")], "replace", "rows/failed", "hardware"),
        ([seen("memory", "oom", count=3)], "observe", "memory/oom", "application"),
        ([seen("memory", "oom", count=10)], "condition", "oom-storm", "application"),
        ([seen("disk", "io-error", count=50)], "replace", "disk-errors", "hardware"),
        ([seen("kernel-log", "overrun", count=9)], "condition", "kernel-log/overrun", "software"),
    ],
)
def test_workflows_of_the_shipped_policy(findings: list[Finding], action: str, rule: str, fault: str) -> None:
    decision = judge(*findings)
    assert (decision.action, decision.rule, decision.fault) == (action, rule, fault)
    assert decision.where.startswith("catalogue.yaml:")


def test_the_line_that_decided_is_the_one_in_the_file() -> None:
    from muster.fleet.health.policytext import CATALOGUE

    decision = judge(xid(79))
    line = CATALOGUE.read_text().splitlines()[int(decision.where.partition(":")[2]) - 1]
    assert line.strip().startswith("79: {")
    assert "action: reboot" in line


def test_job_is_notified_whatever_is_done_about_the_node() -> None:
    assert judge(xid(31)).job == "restart-app"
    assert judge(xid(31), xid(79)).job == "restart-app"
    assert judge(xid(79)).job == ""


def test_the_hardest_test_that_anything_asks_for_has_to_be_passed() -> None:
    assert judge(xid(999), xid(94)).test == 2
    assert judge(xid(999), xid(79)).test == 3


def test_a_flood_is_one_incident() -> None:
    flood = seen("xid", "31", 100, count=800_000, lasts_s=100)
    assert judge(flood).action == "observe"


def test_evidence_counts_until_its_time_is_up() -> None:
    decision = judge(xid(79, DAY_S - 10))
    assert (decision.action, decision.until_s) == ("reboot", NOW_S + 10)
    assert judge(xid(79, DAY_S + 10)).action == "none"
    twice = judge(xid(31, DAY_S - 10), xid(31, HOUR_S))
    assert (twice.action, twice.until_s) == ("quarantine", NOW_S + 10)


def test_evidence_before_the_last_passed_test_counts_only_beside_new_evidence() -> None:
    old = [xid(79, HOUR_S), xid(31, HOUR_S)]
    assert judge(*old, cleared_s=NOW_S - 60).action == "none"
    again = judge(*old, xid(31), cleared_s=NOW_S - 60)
    assert (again.action, again.rule) == ("quarantine", "xid-31-same-gpu")


def test_five_remediations_in_a_week_end_in_a_persons_hands() -> None:
    often = tuple(DAY_S * number for number in range(5))
    assert judge(xid(79), remediations=often[:4]).action == "reboot"
    decision = judge(xid(79), remediations=often)
    assert (decision.action, decision.rule) == ("human", "remediated-often")
    assert judge(xid(79), remediations=(*often[:4], 8 * DAY_S)).action == "reboot"
    assert judge(xid(31), remediations=often).action == "observe", "nothing would be remediated"
    assert judge(remediations=often).action == "none"


def test_unknown_codes_are_said_aloud_even_where_something_else_decides() -> None:
    decision = judge(xid(999), xid(79), seen("tomorrow", "x"))
    assert decision.unknown == ("tomorrow/x", "xid/999")
    said = "\n".join(lines(decision, default_policy()))
    assert "UNKNOWN: xid/999" in said


def test_an_explanation_names_the_line_the_evidence_and_what_others_would_do() -> None:
    said = list(lines(judge(xid(63)), default_policy()))
    assert said[0].startswith("condition (hardware fault)")
    assert any(text.startswith("decided by xid/63 (catalogue.yaml:") for text in said)
    assert any("nvidia IGNORE" in text and "eks replace" in text for text in said)
    excused = list(lines(judge(xid(45), xid(31, 5)), default_policy()))
    assert any(text.startswith("not counted for xid/45") and "xid-45-follows" in text for text in excused)
    assert list(lines(Decision(), default_policy())) == ["none: no finding counts at present"]


CODES = st.sampled_from(
    [
        ("xid", code)
        for code in ("13", "31", "43", "45", "48", "63", "74", "79", "94", "999", "154/none", "145/nonfatal/X/0x1")
    ]
    + [("port", "symbol_error"), ("port", "link_downed"), ("nic", "link-down"), ("memory", "oom"), ("tomorrow", "x")]
)
FINDINGS = st.builds(
    lambda code, ago_s, gpu, count: seen(*code, ago_s, gpu, count),
    CODES,
    st.sampled_from([0.0, 5.0, 59.0, 600.0, 1800.0, 3700.0, 80_000.0, 90_000.0, 500_000.0]),
    st.sampled_from(["gpu-1", "gpu-2", "gpu-3"]),
    st.sampled_from([1, 2, 70, 5000]),
)
HISTORIES = st.builds(
    lambda cleared_ago_s, remediations: History(
        cleared_s=NOW_S - cleared_ago_s, remediations_s=tuple(NOW_S - ago_s for ago_s in remediations)
    ),
    st.sampled_from([50.0, 7000.0, NOW_S]),
    st.lists(st.sampled_from([0.0, 100_000.0, 500_000.0, 700_000.0]), max_size=6),
)
PLAIN = read_policy(
    "version: 1\nrevision: without-excuses\nrules:\n"
    + "".join(f"- {{name: {rule.name}, excuses: []}}\n" for rule in default_policy().rules if rule.excuses),
    "plain.yaml",
)


@settings(max_examples=150, deadline=None)
@given(st.lists(FINDINGS, max_size=12), HISTORIES, st.integers(0, 2**32))
def test_the_order_of_findings_never_matters(findings: list[Finding], history: History, seed: int) -> None:
    shuffled = list(findings)
    random.Random(seed).shuffle(shuffled)
    assert decide(findings, history, default_policy(), NOW_S) == decide(shuffled, history, default_policy(), NOW_S)


@settings(max_examples=200, deadline=None)
@given(st.lists(FINDINGS, max_size=10), FINDINGS, HISTORIES, st.sampled_from([default_policy(), PLAIN]))
def test_more_evidence_is_never_a_milder_action(
    findings: list[Finding], another: Finding, history: History, policy: Policy
) -> None:
    before = decide(findings, history, policy, NOW_S)
    after = decide([*findings, another], history, policy, NOW_S)
    if RANK[after.action] < RANK[before.action] or after.test < before.test:
        assert set(after.excused) - set(before.excused), "only a rule that explains a finding may take it away"
        assert policy is not PLAIN


@settings(max_examples=100, deadline=None)
@given(st.lists(FINDINGS, min_size=1, max_size=10), HISTORIES, st.sampled_from([0.0, 1000.0, 400_000.0]))
def test_more_remediations_are_never_a_milder_action(findings: list[Finding], history: History, ago_s: float) -> None:
    more = History(cleared_s=history.cleared_s, remediations_s=(*history.remediations_s, NOW_S - ago_s))
    before = decide(findings, history, default_policy(), NOW_S)
    assert RANK[decide(findings, more, default_policy(), NOW_S).action] >= RANK[before.action]


@settings(max_examples=100, deadline=None)
@given(st.lists(FINDINGS, max_size=10), HISTORIES)
def test_a_decision_never_lasts_longer_or_shorter_than_it_says(findings: list[Finding], history: History) -> None:
    decision = decide(findings, history, PLAIN, NOW_S)
    if decision.until_s is None:
        return
    assert decide(findings, history, PLAIN, decision.until_s).action == decision.action
    later = decide(findings, history, PLAIN, decision.until_s + 1)
    assert RANK[later.action] < RANK[decision.action]


@settings(max_examples=100, deadline=None)
@given(st.lists(FINDINGS, max_size=10), HISTORIES)
def test_never_an_action_without_a_line_of_the_policy_and_evidence(findings: list[Finding], history: History) -> None:
    decision = decide(findings, history, default_policy(), NOW_S)
    for reason in decision.reasons:
        assert reason.where.startswith("catalogue.yaml:")
        assert reason.why
        assert set(reason.findings) <= set(findings)
        assert reason.findings
    assert (decision.action == "none") >= (not decision.reasons)
    assert all(max(f.last_s for f in reason.findings) > history.cleared_s for reason in decision.reasons)
