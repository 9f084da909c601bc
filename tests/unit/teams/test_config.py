"""The ConfigMap: what it means, and that every bad one is refused by line."""

from __future__ import annotations

import textwrap
from contextlib import suppress
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.teams.config import PoolConfig, Share, TeamsConfig, from_data, parse
from muster.teams.yaml_reader import TeamsConfigError

GOOD = """\
teamKey: openai.com/team
runningGangs: Move
allocations:
- {nodeSelector: {gpu: h100, zone: a}, team: vision, amount: 40}
- nodeSelector: {zone: a, gpu: h100}
  team: speech
  amount: 12.5%
- {nodeSelector: {gpu: b200}, team: vision, amount: "100%"}
"""


def test_tuples_with_equal_selectors_are_one_pool() -> None:
    h100 = PoolConfig(
        (("gpu", "h100"), ("zone", "a")), (Share("vision", 40), Share("speech", percent=Fraction("12.5")))
    )
    b200 = PoolConfig((("gpu", "b200"),), (Share("vision", percent=Fraction(100)),))
    assert parse(GOOD) == TeamsConfig("openai.com/team", "openai.com/team", "Move", (h100, b200))
    assert [pool.name for pool in parse(GOOD).pools] == ["gpu=h100,zone=a", "gpu=b200"]
    assert [str(share) for share in h100.shares] == ["40", "12.5%"]


@pytest.mark.parametrize("text", ["", "# nothing\n", "null\n", "{}\n", "allocations: []\n", "allocations:\n"])
def test_an_empty_one_has_no_pools(text: str) -> None:
    assert parse(text) == TeamsConfig()


def test_the_data_of_a_config_map() -> None:
    assert from_data({}) == TeamsConfig()
    assert from_data({"teams.yaml": GOOD}) == parse(GOOD)
    with pytest.raises(TeamsConfigError, match=r"no key teams\.yaml; the data has team\.yaml"):
        from_data({"team.yaml": GOOD})


ONE = "- {nodeSelector: {gpu: h100}, team: vision, amount: 40}"

BAD = {
    "negative": ("- {nodeSelector: {gpu: h100}, team: vision, amount: -3}", 2, "amount '-3' is negative", "0 or more"),
    "no number": ("- {nodeSelector: {a: b}, team: vision, amount: many}", 2, "not a whole number", "as in 40"),
    "half a node": ("- {nodeSelector: {a: b}, team: vision, amount: 1.5}", 2, "not a whole number", "as in 40"),
    "exponent": ("- {nodeSelector: {a: b}, team: vision, amount: 1e3}", 2, "not a whole number", "as in 40"),
    "not a number": ("- {nodeSelector: {a: b}, team: vision, amount: .nan}", 2, "not a whole number", "as in 40"),
    "other digits": ("- {nodeSelector: {a: b}, team: vision, amount: ٤}", 2, "not a whole number", "as in 40"),
    "no amount": ("- {nodeSelector: {a: b}, team: vision, amount: }", 2, "amount has no value", "after the colon"),
    "too much": ("- {nodeSelector: {a: b}, team: vision, amount: 101%}", 2, "more than the whole", "100% at most"),
    "negative %": ("- {nodeSelector: {a: b}, team: vision, amount: -1%}", 2, "negative", "0% to 100%"),
    "all together": (
        "- {nodeSelector: {a: b}, team: x, amount: 60%}\n- {nodeSelector: {a: b}, team: y, amount: 40.5%}",
        3,
        "add up to 100.5%",
        "100% in total",
    ),
    "twice": (f"{ONE}\n{ONE}", 3, "team vision are those of line 2", "one allocation"),
    "overlap": (
        f"{ONE}\n- {{nodeSelector: {{zone: a}}, team: x, amount: 1}}",
        3,
        "{zone: a} and {gpu: h100} of line 2 may select the same node",
        "label with different values",
    ),
    "contained": (f"{ONE}\n- {{nodeSelector: {{gpu: h100, zone: a}}, team: x, amount: 1}}", 3, "same node", "equal"),
    "every node": ("- {nodeSelector: {}, team: vision, amount: 1}", 2, "names no label", "select every node"),
    "no mapping": ("- {nodeSelector: gpu, team: vision, amount: 1}", 2, "is not a mapping", "{key: value}"),
    "no selector": ("- {team: vision, amount: 1}", 2, "has no nodeSelector", "nodeSelector, team and amount"),
    "only a team": ("- team: vision", 2, "no nodeSelector and no amount", "nodeSelector, team and amount"),
    "no tuple": ("- vision", 2, "an allocation is not a mapping", "nodeSelector, team, amount"),
    "no list": ("  vision: 3", 2, "allocations is not a list", "dash"),
    "field": ("- {nodeSelector: {a: b}, team: x, amount: 1, max: 3}", 2, "no field 'max'", "nodeSelector, team"),
    "top field": (f"{ONE}\npools: []", 3, "the file has no field 'pools'", "its fields are teamKey"),
    "key twice": ("- {nodeSelector: {a: b}, team: x, team: y, amount: 1}", 2, "team is there twice", "keep one"),
    "yes": ("- {nodeSelector: {a: b}, team: yes, amount: 1}", 2, "team is true or false to YAML", 'quote it: "yes"'),
    "number": ("- {nodeSelector: {a: 1}, team: x, amount: 1}", 2, "label a is a number to YAML", 'quote it: "1"'),
    "team": ("- {nodeSelector: {a: b}, team: a team, amount: 1}", 2, "'a team' is not a label", "letters, digits"),
    "long team": (f"- {{nodeSelector: {{a: b}}, team: {'x' * 64}, amount: 1}}", 2, "not a label value", "63"),
    "no team": ('- {nodeSelector: {a: b}, team: "", amount: 1}', 2, "'' is not a label value", "letters, digits"),
    "label": ("- {nodeSelector: {a b: c}, team: x, amount: 1}", 2, "'a b' is not a label key", "DOMAIN/NAME"),
    "itself": (
        "- {nodeSelector: {muster.dev/team: c}, team: x, amount: 1}",
        2,
        "Muster itself writes",
        "another label",
    ),
    "its key": (f"{ONE}\nteamKey: a b", 3, "'a b' is not a label key", "openai.com/team"),
    "gangs": (f"{ONE}\nrunningGangs: Kill", 3, "runningGangs is 'Kill'", "Wait or Move"),
    "no yaml": ("- {nodeSelector: {a: b}, team: x", 3, "no YAML", "mend it"),
    "tab": ("\t- a", 2, "no YAML", "mend it"),
    "two of them": (f"{ONE}\n---\na: b", 3, "no YAML", "mend it"),
    "control": ("- {nodeSelector: {a: b}, team: \x07, amount: 1}", 2, "not allowed in YAML", "mend it"),
    "alias": ("- &a [*a]", 2, "an allocation is not a mapping", "nodeSelector"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_ones_are_refused_by_line(case: str) -> None:
    text, line, what, change = BAD[case]
    with pytest.raises(TeamsConfigError) as raised:
        parse(f"allocations:\n{text}\n")
    problem = next((each for each in raised.value.problems if what in each.what), None)
    assert problem is not None, raised.value
    assert problem.line == line
    assert change in problem.change
    assert f"line {line}: " in str(raised.value)


def test_everything_that_is_wrong_is_said_at_once() -> None:
    text = """\
        teamKey: [a]
        allocations:
        - {nodeSelector: {a: b}, team: x, amount: -1}
        - {nodeSelector: {a: b}, team: 7, amount: 1}
        """
    with pytest.raises(TeamsConfigError) as raised:
        parse(textwrap.dedent(text))
    assert [problem.line for problem in raised.value.problems] == [1, 3, 4]


@given(st.text() | st.text(alphabet="{}[]:-,&*% \n\tabt01?|>!#'\""))
def test_no_text_does_anything_but_parse_or_be_refused(text: str) -> None:
    with suppress(TeamsConfigError):
        assert isinstance(parse(text), TeamsConfig)
