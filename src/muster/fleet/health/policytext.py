"""Reads a policy from YAML: every line that is wrong is said, with what to change, and then nothing of it is used.

A policy builds on another one, and a pool's on the policy it is in, in the same way: an entry or rule that is there
already is changed field by field, a new one has to be whole. What decided is the line that set the action last.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import yaml

from muster.api.marked import NotYaml, document, place_of, plain, twice
from muster.fleet.configtext import ConfigTextError
from muster.fleet.health.policy import ACTIONS, ELSEWHERE, FAULTS, Beside, Entry, Policy, Pool, Rule
from muster.fleet.health.policychecks import rule_problems
from muster.fleet.health.policyfields import EntryText, PolicyText, PoolText, RuleText

CATALOGUE: Final = Path(__file__).with_name("catalogue.yaml")
VERSION: Final = 1
PAGE: Final = "docs/health.md"
DEFAULT: Final = "default"
NOTHING: Final = "nothing"

T = TypeVar("T")

_HINTS: Final = {
    "action": f"use one of {', '.join(ACTIONS)}",
    "fault": f"use one of {', '.join(FAULTS)}",
    "job": "use restart-app, or leave it out",
    "version": f"this Muster reads version {VERSION}",
}
_ENTRY_NEEDS: Final = ("what", "action", "fault")
_RULE_NEEDS: Final = {"why": "why", "action": "action", "fault": "fault", "within_s": "withinSeconds"}


@functools.cache
def default_policy() -> Policy:
    """The policy that is shipped."""
    return read_policy(CATALOGUE.read_text(encoding="utf-8"), CATALOGUE.name)


def read_policy(text: str, file: str) -> Policy:
    """Read a policy.

    Args:
        text: YAML, as docs/health.md describes it.
        file: what it is called where the deciding line is named.

    Raises:
        ConfigTextError: with every line that is wrong.
    """
    reading = _Reading(file)
    policy = reading.policy(text)
    if reading.problems:
        said = sorted(set(reading.problems))
        raise ConfigTextError("\n".join(f"{file}:{line}: {what}" for line, what in said))
    assert policy is not None
    return policy


class _Reading:
    """One text: what it says, and what is wrong with it."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.problems: list[tuple[int, str]] = []

    def policy(self, text: str) -> Policy | None:
        try:
            root = document(text)
        except NotYaml as error:
            self._wrong(error.place.line or 1, f"not YAML: {error.what}; mend it")
            return None
        for key, line in twice(root):
            self._wrong(
                place_of(key).line, f"{getattr(key, 'value', '')} is there twice, also in line {line}; keep one"
            )
        if not isinstance(root, yaml.MappingNode):
            self._wrong(1, "a policy is a mapping that begins with version, revision and codes")
            return None
        parts = dict(self._items(root, "the policy"))
        for name, (line, _) in parts.items():
            if name not in _POLICY_FIELDS:
                self._wrong(line, f"there is no field {name}; use {', '.join(_POLICY_FIELDS)}")
        head = self._head(parts, place_of(root).line)
        if head is None:
            return None
        base = default_policy() if head.extends == DEFAULT else None
        unknown = base.unknown if base is not None else None
        if "unknown" in parts:
            unknown = self._entry(*parts["unknown"], "unknown", unknown)
        elif unknown is None:
            self._wrong(1, "unknown is missing; write what is done about checks the policy does not know")
        policy = self._layer(parts, base.codes if base else {}, base.rules if base else ())
        if unknown is None:
            return None
        whole = Policy(revision=head.revision, codes=policy[0], rules=policy[1], unknown=unknown)
        return msgspec.structs.replace(whole, pools=tuple(self._pools(parts, whole)))

    def _head(self, parts: Mapping[str, tuple[int, yaml.Node]], line: int) -> PolicyText | None:
        known = {name: plain(node) for name, (_, node) in parts.items() if name in ("version", "revision", "extends")}
        try:
            return msgspec.convert(known, PolicyText)
        except msgspec.ValidationError as error:
            what, _, path = str(error).partition(" - at `$.")
            name = path.rstrip("`")
            self._wrong(parts[name][0] if name in parts else line, _said(name, what))
            return None

    def _layer(
        self,
        parts: Mapping[str, tuple[int, yaml.Node]],
        codes: Mapping[str, Mapping[str, Entry]],
        rules: tuple[Rule, ...],
    ) -> tuple[dict[str, dict[str, Entry]], tuple[Rule, ...]]:
        """What is below, changed by `codes` and `rules` of this part of the text."""
        changed = {check: dict(entries) for check, entries in codes.items()}
        for check, (_, node) in self._items(parts["codes"][1], "codes") if "codes" in parts else ():
            entries = changed.setdefault(check, {})
            for code, (line, below) in self._items(node, check):
                entry = self._entry(line, below, f"{check}/{code}", entries.get(code))
                if entry is not None:
                    entries[code] = entry
        by_name = {rule.name: rule for rule in rules}
        if "rules" in parts:
            self._rules(parts["rules"][1], by_name, changed)
        return changed, tuple(by_name.values())

    def _entry(self, line: int, node: yaml.Node, name: str, below: Entry | None) -> Entry | None:
        text = self._convert(line, node, EntryText, name)
        if text is None:
            return None
        said = _given(text)
        opinions = {_ELSEWHERE[field]: said.pop(field) for field in tuple(said) if field in _ELSEWHERE}
        if below is None:
            missing = [field for field in _ENTRY_NEEDS if field not in said]
            if missing:
                self._wrong(line, f"{name} is new and lacks {', '.join(missing)}; write them")
                return None
            return Entry(**said, elsewhere=opinions, where=f"{self.file}:{line}")
        if "action" in said:
            said["where"] = f"{self.file}:{line}"
        return msgspec.structs.replace(below, **said, elsewhere={**below.elsewhere, **opinions})

    def _rules(self, node: yaml.Node, by_name: dict[str, Rule], codes: Mapping[str, Mapping[str, Entry]]) -> None:
        here: dict[str, int] = {}
        for line, below in self._elements(node, "rules"):
            text = self._convert(line, below, RuleText, "a rule")
            if text is None:
                continue
            if text.name in here:
                self._wrong(line, f"rule {text.name} is there twice, also in line {here[text.name]}; keep one")
                continue
            here[text.name] = line
            if text.disabled:
                if by_name.pop(text.name, None) is None:
                    self._wrong(line, f"rule {text.name} is disabled, and there is none of that name; correct it")
                continue
            rule = self._rule(line, text, by_name.get(text.name))
            if rule is not None:
                by_name[rule.name] = rule
                for what in rule_problems(rule, codes):
                    self._wrong(line, f"rule {rule.name}: {what}")
        for name, line in here.items():
            for other in by_name[name].excuses if name in by_name else ():
                check, _, code = other.partition("/")
                if other not in by_name and code not in codes.get(check, {}):
                    self._wrong(
                        line, f"rule {name} excuses {other}, which is no rule and no CHECK/CODE; correct the name"
                    )

    def _rule(self, line: int, text: RuleText, below: Rule | None) -> Rule | None:
        said = _given(text)
        said.pop("disabled", None)
        said.update({field: tuple(said[field]) for field in ("codes", "excuses") if field in said})
        if text.beside is not None:
            said["beside"] = Beside(text.beside.seconds, text.beside.component, tuple(text.beside.codes))
        if below is None:
            missing = [name for field, name in _RULE_NEEDS.items() if field not in said]
            if missing:
                self._wrong(line, f"rule {text.name} is new and lacks {', '.join(missing)}; write them")
                return None
            return Rule(**said, where=f"{self.file}:{line}")
        if "action" in said:
            said["where"] = f"{self.file}:{line}"
        return msgspec.structs.replace(below, **said)

    def _pools(self, parts: Mapping[str, tuple[int, yaml.Node]], whole: Policy) -> Iterator[Pool]:
        names: dict[str, int] = {}
        selectors: dict[tuple[tuple[str, str], ...], str] = {}
        for line, node in self._elements(parts["pools"][1], "pools") if "pools" in parts else ():
            inner = dict(self._items(node, "a pool"))
            heading = {name: plain(value[1]) for name, value in inner.items() if name not in ("codes", "rules")}
            try:
                pool = msgspec.convert(heading, PoolText)
            except msgspec.ValidationError as error:
                what, _, path = str(error).partition(" - at `$.")
                field = path.rstrip("`").partition("[")[0].partition(".")[0]
                self._wrong(inner[field][0] if field in inner else line, f"a pool: {_said(field, what)}")
                continue
            selector = tuple(sorted(pool.node_selector.items()))
            if not selector:
                self._wrong(line, f"pool {pool.name} selects every node; write a label, or change the policy itself")
            if pool.name in names:
                self._wrong(line, f"another pool is called {pool.name}, in line {names[pool.name]}; rename one")
            if selector in selectors:
                self._wrong(line, f"pool {selectors[selector]} selects the same nodes and comes first; merge them")
            names.setdefault(pool.name, line)
            selectors.setdefault(selector, pool.name)
            codes, rules = self._layer(inner, whole.codes, whole.rules)
            policy = msgspec.structs.replace(whole, codes=codes, rules=rules)
            yield Pool(name=pool.name, node_selector=pool.node_selector, policy=policy)

    def _items(self, node: yaml.Node, name: str) -> Iterator[tuple[str, tuple[int, yaml.Node]]]:
        if not isinstance(node, yaml.MappingNode):
            if not _is_empty(node):
                self._wrong(place_of(node).line, f"{name} has to be a mapping, KEY: value")
            return
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                yield str(key.value), (place_of(key).line, value)
            else:
                self._wrong(place_of(key).line, f"a key of {name} has to be a word or a number")

    def _elements(self, node: yaml.Node, name: str) -> Iterator[tuple[int, yaml.Node]]:
        if isinstance(node, yaml.SequenceNode):
            yield from ((place_of(each).line, each) for each in node.value)
        elif not _is_empty(node):
            self._wrong(place_of(node).line, f"{name} has to be a list, each beginning with a dash")

    def _convert(self, line: int, node: yaml.Node, kind: type[T], name: str) -> T | None:
        try:
            return msgspec.convert(plain(node), kind)
        except NotYaml as error:
            self._wrong(error.place.line or line, f"{name}: {error.what}; mend it")
        except msgspec.ValidationError as error:
            what, _, path = str(error).partition(" - at `$.")
            field = path.rstrip("`")
            for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
                if getattr(key, "value", None) == field.partition("[")[0].partition(".")[0]:
                    line = place_of(value).line
            self._wrong(line, f"{name}: {_said(field, what)}")
        return None

    def _wrong(self, line: int, what: str) -> None:
        self.problems.append((line, what))


_ELSEWHERE: Final = {("nvidia_then" if name == "nvidiaThen" else name): name for name in ELSEWHERE}
_POLICY_FIELDS: Final = tuple(field.encode_name for field in msgspec.structs.fields(PolicyText))


def _said(field: str, what: str) -> str:
    hint = _HINTS.get(field, f"see {PAGE} for this field")
    return f"{field}: {what}; {hint}" if field else f"{what}; {hint}"


def _given(text: EntryText | RuleText) -> dict[str, Any]:
    """The fields that were written."""
    return {field: value for field, value in msgspec.structs.asdict(text).items() if value is not None}


def _is_empty(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.tag.endswith(":null")
