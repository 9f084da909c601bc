"""Policies: the shipped one is complete, errors are said line by line, and each layer changes the one below."""

from __future__ import annotations

from collections import Counter

import pytest

from muster.api.configtext import ConfigTextError
from muster.fleet.health import schema
from muster.fleet.health.policy import RANK, UNKNOWN_CODE
from muster.fleet.health.policyinuse import PolicyInUse
from muster.fleet.health.policytext import default_policy, read_policy

HEAD = "version: 1\nrevision: mine\n"


def test_the_shipped_policy_has_every_code_of_nvidias_catalogue() -> None:
    codes = {int(code): entry for code, entry in default_policy().codes["xid"].items() if code.isdigit()}
    assert sorted(codes) == list(range(1, 173))
    actions = Counter(entry.elsewhere.get("nvidia") for entry in codes.values())
    assert (actions["CONTACT_SUPPORT"], actions["RESTART_APP"], actions["IGNORE"], actions["RESET_GPU"]) == (
        62,
        48,
        21,
        14,
    )
    assert [code for code, entry in codes.items() if entry.elsewhere.get("nvidia") == "RESTART_BM"] == [79]
    assert [code for code, entry in codes.items() if entry.elsewhere.get("nvidia") == "RESTART_VM"] == [151]


def test_generated_files_are_what_the_policy_says() -> None:
    assert schema.main(["--check"]) == 0


def test_xids_that_nvidia_ignores_are_never_disruptive_here() -> None:
    for code, entry in default_policy().codes["xid"].items():
        if entry.elsewhere.get("nvidia") in ("IGNORE", "RESTART_APP"):
            assert RANK[entry.action] <= RANK["condition"], code


def test_every_check_says_what_its_unknown_codes_mean_and_no_unknown_code_is_taken_lightly() -> None:
    for check, entries in default_policy().codes.items():
        assert UNKNOWN_CODE in entries, check
    name, entry, known = default_policy().entry("xid", "999")
    assert (name, entry.action, known) == ("xid/unknown", "quarantine", False)
    assert default_policy().entry("a-check-of-tomorrow", "x")[2] is False


def test_a_code_that_says_more_means_what_its_beginning_means() -> None:
    policy = default_policy()
    assert policy.entry("xid", "145/fatal/RLW_REMAP/0x00000040")[0] == "xid/145/fatal"
    assert policy.entry("xid", "145/nonfatal/RLW_REMAP/0x00000040")[1].action == "reset-gpu"
    assert policy.entry("xid", "145/nonfatal/RLW_CTRL/0x80000000")[1].action == "observe"
    assert policy.entry("xid", "154/0x9")[0] == "xid/154"
    assert policy.entry("sxid", "fatal/20034")[1].action == "reboot"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: [", "p.yaml:1:5: not YAML"),
        ("- a\n", "p.yaml:1:1: a policy is a mapping"),
        ("revision: x\n", "p.yaml:1:1: Object missing required field `version`"),
        ("version: 2\nrevision: x\n", "p.yaml:1:10: version: Invalid enum value 2; this Muster reads version 1"),
        (HEAD + "bogus: 1\n", "p.yaml:3:1: bogus: unknown field; known here: codes, extends, pools"),
        (HEAD + "revision: y\n", "p.yaml:3:1: revision is there twice, also in line 2; keep one"),
        (
            HEAD + "codes:\n  xid:\n    79: {action: rebot}\n",
            "p.yaml:5:18: xid/79: action: Invalid enum value 'rebot'; did you mean reboot?",
        ),
        (
            HEAD + "codes:\n  xid:\n    79:\n      fault: x\n",
            "p.yaml:6:14: xid/79: fault: Invalid enum value 'x'; use one of unknown, application",
        ),
        (HEAD + "codes:\n  xid:\n    79: {test: 9}\n", "p.yaml:5:16: xid/79: test: Expected `int` <= 3"),
        (HEAD + "codes:\n  xid:\n    79: {keepSeconds: 0}\n", "p.yaml:5:23: xid/79: keepSeconds: Expected `float` > 0"),
        (
            HEAD + "codes:\n  xid:\n    999: {action: reboot}\n",
            "p.yaml:5:5: xid/999 is new and lacks what, fault; write them",
        ),
        (HEAD + "codes:\n  xid: 3\n", "p.yaml:4:8: xid has to be a mapping"),
        (HEAD + "codes: 2026-99-99\n", "p.yaml:3:8: codes has to be a mapping"),
        (HEAD + "rules: {a: 1}\n", "p.yaml:3:8: rules has to be a list"),
        (
            HEAD + "rules:\n- {name: new, check: xid}\n",
            "p.yaml:4:3: rule new is new and lacks why, action, fault, withinSeconds",
        ),
        (HEAD + "rules:\n- {name: fatal-xids, incidents: 0}\n", "p.yaml:4:33: a rule: incidents: Expected `int` >= 1"),
        (
            HEAD + "rules:\n- {name: fatal-xids, check: nono}\n",
            "p.yaml:4:3: rule fatal-xids: no code of the check",
        ),
        (
            HEAD + "rules:\n- {name: fatal-xids, codes: [abc]}\n",
            "p.yaml:4:3: rule fatal-xids: code abc of xid is not in the policy",
        ),
        (HEAD + "rules:\n- {name: fatal-xids, components: 2}\n", "components counts different ones"),
        (
            HEAD + "rules:\n- {name: fatal-xids, excuses: [x/1]}\n",
            "p.yaml:4:3: rule fatal-xids excuses x/1, which is neither a rule",
        ),
        (
            HEAD + "rules:\n- {name: remediated-often, check: xid}\n",
            "p.yaml:4:3: rule remediated-often: remediations stands alone",
        ),
        (
            HEAD + "rules:\n- {name: link-flap, disabled: true}\n",
            "p.yaml:4:3: rule link-flap is disabled, and there is none of that name; correct it",
        ),
        (
            HEAD + "rules:\n- {name: fatal-xids}\n- {name: fatal-xids}\n",
            "p.yaml:5:3: rule fatal-xids is there twice, also in line 4",
        ),
        (HEAD + "pools:\n- {name: A, nodeSelector: {a: b}}\n", "p.yaml:4:10: a pool: name: "),
        (HEAD + "pools:\n- {name: a}\n", "p.yaml:4:3: a pool: Object missing required field `nodeSelector`"),
        (HEAD + "pools:\n- {name: a, nodeSelector: {}}\n", "p.yaml:4:3: pool a selects every node"),
        (
            HEAD + "pools:\n- {name: a, nodeSelector: {a: b}}\n- {name: b, nodeSelector: {a: b}}\n",
            "p.yaml:5:3: pool a selects the same",
        ),
        (
            HEAD + "pools:\n- name: a\n  nodeSelector: {a: b}\n  codes: {xid: {79: {action: x}}}\n",
            "p.yaml:6:30: xid/79: action",
        ),
        (HEAD + "extends: nothing\n", "p.yaml:1:1: unknown is missing"),
        (HEAD + "extends: defualt\n", "p.yaml:3:10: extends: Invalid enum value 'defualt'; did you mean default?"),
        (HEAD + "rule: []\n", "p.yaml:3:1: rule: unknown field; did you mean rules?"),
        (HEAD + "codes: {xid: {79: {acton: reboot}}}\n", "xid/79: acton: unknown field; did you mean action?"),
        ("version: 1\nrevision: 2026-99-99\n", "p.yaml:2:11: 2026-99-99 looks like a timestamp, but is not valid"),
    ],
)
def test_error_is_reported_with_its_line_and_the_fix(text: str, says: str) -> None:
    with pytest.raises(ConfigTextError) as error:
        read_policy(text, "p.yaml")
    assert says in str(error.value)


def test_everything_that_is_wrong_is_said_at_once() -> None:
    text = HEAD + "codes:\n  xid:\n    79: {action: rebot}\n    80: {job: x}\nrules:\n- {name: new}\nbogus: 1\n"
    with pytest.raises(ConfigTextError) as error:
        read_policy(text, "p.yaml")
    assert [line.split(":")[1] for line in str(error.value).splitlines()] == ["5", "6", "8", "9"]


def test_a_policy_with_errors_leaves_the_old_one_in_place() -> None:
    holder = PolicyInUse()
    assert holder.replace(HEAD + "codes: {xid: {79: {action: human}}}\n", "p.yaml")
    good = holder.policy
    assert good.revision == "mine"
    assert not holder.replace(HEAD + "codes: {xid: {79: {action: rebot}}}\n", "p.yaml")
    assert holder.policy is good
    assert "p.yaml:3" in holder.problems
    assert holder.replace(HEAD, "p.yaml")
    assert holder.problems == ""


LAYERS = (
    HEAD
    + """codes:
  xid:
    63: {action: quarantine}
    79: {keepSeconds: 60}
rules:
- {name: fatal-xids, incidents: 3}
- {name: link-flaps, disabled: true}
pools:
- name: h100
  nodeSelector: {muster.dev/pool: h100}
  codes:
    xid:
      63: {action: replace}
  rules:
  - {name: fatal-xids, action: replace}
- name: the-rest-of-h
  nodeSelector: {muster.dev/pool: h100, other: "1"}
"""
)


def test_a_layer_changes_field_by_field_and_the_line_that_set_the_action_decides() -> None:
    policy = read_policy(LAYERS, "p.yaml")
    below = default_policy()
    assert policy.codes["xid"]["63"].where == "p.yaml:5"
    assert policy.codes["xid"]["63"].what == below.codes["xid"]["63"].what
    assert policy.codes["xid"]["79"].where == below.codes["xid"]["79"].where, "this one changed no action"
    assert policy.codes["xid"]["79"].keep_s == 60
    assert policy.codes["xid"]["48"] == below.codes["xid"]["48"]
    rules = {rule.name: rule for rule in policy.rules}
    assert (rules["fatal-xids"].incidents, rules["fatal-xids"].action) == (3, "human")
    assert "link-flaps" not in rules


def test_the_first_pool_that_selects_a_node_changes_the_policy_it_is_in() -> None:
    policy = read_policy(LAYERS, "p.yaml")
    pool = policy.of_node({"muster.dev/pool": "h100", "other": "1"})
    assert pool.codes["xid"]["63"].action == "replace"
    assert pool.codes["xid"]["63"].where == "p.yaml:15"
    rules = {rule.name: rule for rule in pool.rules}
    assert (rules["fatal-xids"].incidents, rules["fatal-xids"].action) == (3, "replace")
    assert policy.of_node({"muster.dev/pool": "a100"}) is policy
    assert policy.of_node({}) is policy


def test_a_policy_may_begin_with_nothing() -> None:
    text = HEAD + "extends: nothing\nunknown: {what: anything, action: human, fault: unknown}\n"
    policy = read_policy(text, "p.yaml")
    assert policy.entry("xid", "79") == ("unknown", policy.unknown, False)
    assert policy.rules == ()
