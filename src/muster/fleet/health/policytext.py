"""Parses a policy from YAML. If any line is wrong, every problem is reported and the text is not used.

A policy extends another one, and a pool's policy extends the policy around it. An existing entry or rule is changed
field by field; a new one must be complete. Decisions name the line that last set the action.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import yaml

from muster.api.configtext import ConfigTextError, place_text
from muster.api.marked import NotYaml, Place, document, place_of, plain, twice
from muster.api.misfits import field_hint, misfits
from muster.fleet.health.policy import ELSEWHERE, UNKNOWN_CODE, Beside, Entry, Policy, Pool, Rule
from muster.fleet.health.policyfields import EntryText, PolicyText, PoolText, RuleText

CATALOGUE: Final = Path(__file__).with_name("catalogue.yaml")
VERSION: Final = 1
PAGE: Final = "docs/health.md"
DEFAULT: Final = "default"

T = TypeVar("T")

_START: Final = Place(1, 1)

_HINTS: Final = {"version": f"this Muster reads version {VERSION}"}
_HEAD: Final = frozenset({"version", "revision", "extends"})
_LAYER: Final = frozenset({"codes", "rules"})
_ENTRY_NEEDS: Final = ("what", "action", "fault")
_RULE_NEEDS: Final = {"why": "why", "action": "action", "fault": "fault", "within_s": "withinSeconds"}


@functools.cache
def default_policy() -> Policy:
    """Return the default policy."""
    return read_policy(CATALOGUE.read_text(encoding="utf-8"), CATALOGUE.name)


def read_policy(text: str | yaml.Node, file: str) -> Policy:
    """Parse a policy.

    Args:
        text: YAML, as docs/health.md describes it, or a YAML node that was composed already.
        file: its name in references to the deciding line.

    Raises:
        ConfigTextError: with every line that is wrong.
    """
    reading = _Reading(file)
    policy = reading.policy(text)
    if reading.problems:
        said = sorted(set(reading.problems))
        raise ConfigTextError("\n".join(f"{place_text(place, file)}{what}" for place, what in said))
    assert policy is not None
    return policy


class _Reading:
    """Parses one text and collects its problems."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.problems: list[tuple[Place, str]] = []

    def policy(self, text: str | yaml.Node) -> Policy | None:
        try:
            root = text if isinstance(text, yaml.Node) else document(text)
        except NotYaml as error:
            self._wrong(_known(error.place, _START), f"not YAML: {error.what}; mend it")
            return None
        for key, line in twice(root):
            self._wrong(place_of(key), f"{getattr(key, 'value', '')} is there twice, also in line {line}; keep one")
        if not isinstance(root, yaml.MappingNode):
            self._wrong(_START, "a policy is a mapping that begins with version, revision and codes")
            return None
        parts = dict(self._items(root, "the policy"))
        for name, (place, _) in parts.items():
            if name not in _POLICY_FIELDS:
                self._wrong(place, f"{name}: unknown field; {field_hint(name, _POLICY_FIELDS)}")
        head = self._convert(place_of(root), _without(root, parts.keys() - _HEAD), PolicyText, "")
        if head is None:
            return None
        base = default_policy() if head.extends == DEFAULT else None
        unknown = base.unknown if base is not None else None
        if "unknown" in parts:
            unknown = self._entry(*parts["unknown"], "unknown", unknown)
        elif unknown is None:
            self._wrong(_START, "unknown is missing; write what is done about checks the policy does not know")
        policy = self._layer(parts, base.codes if base else {}, base.rules if base else ())
        if unknown is None:
            return None
        whole = Policy(revision=head.revision, codes=policy[0], rules=policy[1], unknown=unknown)
        return msgspec.structs.replace(whole, pools=tuple(self._pools(parts, whole)))

    def _layer(
        self,
        parts: Mapping[str, tuple[Place, yaml.Node]],
        codes: Mapping[str, Mapping[str, Entry]],
        rules: tuple[Rule, ...],
    ) -> tuple[dict[str, dict[str, Entry]], tuple[Rule, ...]]:
        """Return the policy below, changed by `codes` and `rules` of this part of the text."""
        changed = {check: dict(entries) for check, entries in codes.items()}
        for check, (_, node) in self._items(parts["codes"][1], "codes") if "codes" in parts else ():
            entries = changed.setdefault(check, {})
            for code, (place, below) in self._items(node, check):
                entry = self._entry(place, below, f"{check}/{code}", entries.get(code))
                if entry is not None:
                    entries[code] = entry
        by_name = {rule.name: rule for rule in rules}
        if "rules" in parts:
            self._rules(parts["rules"][1], by_name, changed)
        return changed, tuple(by_name.values())

    def _entry(self, place: Place, node: yaml.Node, name: str, below: Entry | None) -> Entry | None:
        text = self._convert(place, node, EntryText, name)
        if text is None:
            return None
        said = _given(text)
        opinions = {_ELSEWHERE[field]: said.pop(field) for field in tuple(said) if field in _ELSEWHERE}
        if below is None:
            missing = [field for field in _ENTRY_NEEDS if field not in said]
            if missing:
                self._wrong(place, f"{name} is new and lacks {', '.join(missing)}; write them")
                return None
            return Entry(**said, elsewhere=opinions, where=f"{self.file}:{place.line}")
        if "action" in said:
            said["where"] = f"{self.file}:{place.line}"
        return msgspec.structs.replace(below, **said, elsewhere={**below.elsewhere, **opinions})

    def _rules(self, node: yaml.Node, by_name: dict[str, Rule], codes: Mapping[str, Mapping[str, Entry]]) -> None:
        here: dict[str, Place] = {}
        for place, below in self._elements(node, "rules"):
            text = self._convert(place, below, RuleText, "a rule")
            if text is None:
                continue
            if text.name in here:
                self._wrong(place, f"rule {text.name} is there twice, also in line {here[text.name].line}; keep one")
                continue
            here[text.name] = place
            if text.disabled:
                if by_name.pop(text.name, None) is None:
                    self._wrong(place, f"rule {text.name} is disabled, and there is none of that name; correct it")
                continue
            rule = self._rule(place, text, by_name.get(text.name))
            if rule is not None:
                by_name[rule.name] = rule
                for what in _rule_problems(rule, codes):
                    self._wrong(place, f"rule {rule.name}: {what}")
        for name, place in here.items():
            for other in by_name[name].excuses if name in by_name else ():
                check, _, code = other.partition("/")
                if other not in by_name and code not in codes.get(check, {}):
                    self._wrong(
                        place, f"rule {name} excuses {other}, which is neither a rule nor a CHECK/CODE; correct it"
                    )

    def _rule(self, place: Place, text: RuleText, below: Rule | None) -> Rule | None:
        said = _given(text)
        said.pop("disabled", None)
        said.update({field: tuple(said[field]) for field in ("codes", "excuses") if field in said})
        if text.beside is not None:
            said["beside"] = Beside(text.beside.seconds, text.beside.component, tuple(text.beside.codes))
        if below is None:
            missing = [name for field, name in _RULE_NEEDS.items() if field not in said]
            if missing:
                self._wrong(place, f"rule {text.name} is new and lacks {', '.join(missing)}; write them")
                return None
            return Rule(**said, where=f"{self.file}:{place.line}")
        if "action" in said:
            said["where"] = f"{self.file}:{place.line}"
        return msgspec.structs.replace(below, **said)

    def _pools(self, parts: Mapping[str, tuple[Place, yaml.Node]], whole: Policy) -> Iterator[Pool]:
        names: dict[str, Place] = {}
        selectors: dict[tuple[tuple[str, str], ...], str] = {}
        for place, node in self._elements(parts["pools"][1], "pools") if "pools" in parts else ():
            inner = dict(self._items(node, "a pool"))
            pool = self._convert(place, _without(node, _LAYER), PoolText, "a pool")
            if pool is None:
                continue
            selector = tuple(sorted(pool.node_selector.items()))
            if not selector:
                self._wrong(place, f"pool {pool.name} selects every node; write a label, or change the policy itself")
            if pool.name in names:
                self._wrong(place, f"another pool is called {pool.name}, in line {names[pool.name].line}; rename one")
            if selector in selectors:
                self._wrong(place, f"pool {selectors[selector]} selects the same nodes and comes first; merge them")
            names.setdefault(pool.name, place)
            selectors.setdefault(selector, pool.name)
            codes, rules = self._layer(inner, whole.codes, whole.rules)
            policy = msgspec.structs.replace(whole, codes=codes, rules=rules)
            yield Pool(name=pool.name, node_selector=pool.node_selector, policy=policy)

    def _items(self, node: yaml.Node, name: str) -> Iterator[tuple[str, tuple[Place, yaml.Node]]]:
        if not isinstance(node, yaml.MappingNode):
            if not _is_empty(node):
                self._wrong(place_of(node), f"{name} has to be a mapping, KEY: value")
            return
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                yield str(key.value), (place_of(key), value)
            else:
                self._wrong(place_of(key), f"a key of {name} has to be a word or a number")

    def _elements(self, node: yaml.Node, name: str) -> Iterator[tuple[Place, yaml.Node]]:
        if isinstance(node, yaml.SequenceNode):
            yield from ((place_of(each), each) for each in node.value)
        elif not _is_empty(node):
            self._wrong(place_of(node), f"{name} has to be a list, each beginning with a dash")

    def _convert(self, place: Place, node: yaml.Node, kind: type[T], name: str) -> T | None:
        try:
            return msgspec.convert(plain(node), kind)
        except NotYaml as error:
            self._wrong(_known(error.place, place), _about(name, f"{error.what}; mend it"))
        except msgspec.ValidationError as error:
            wrong = list(misfits(node, kind))
            for at, field, what, hint in wrong:
                self._wrong(place_of(at), _about(name, _said(field, what, hint)))
            if not wrong:
                self._wrong(place, _about(name, _said("", str(error))))
        return None

    def _wrong(self, place: Place, what: str) -> None:
        self.problems.append((place, what))


_ELSEWHERE: Final = {("nvidia_then" if name == "nvidiaThen" else name): name for name in ELSEWHERE}
_POLICY_FIELDS: Final = tuple(field.encode_name for field in msgspec.structs.fields(PolicyText))


def _about(name: str, what: str) -> str:
    return f"{name}: {what}" if name else what


def _said(field: str, what: str, hint: str = "") -> str:
    hint = _HINTS.get(field) or hint or f"see {PAGE} for this field"
    return f"{field}: {what}; {hint}" if field else f"{what}; {hint}"


def _given(text: EntryText | RuleText) -> dict[str, Any]:
    """Return the fields that are set."""
    return {field: value for field, value in msgspec.structs.asdict(text).items() if value is not None}


def _without(node: yaml.Node, names: Collection[str]) -> yaml.Node:
    """Return a mapping without these fields, which are parsed separately."""
    if not isinstance(node, yaml.MappingNode):
        return node
    kept = [(key, value) for key, value in node.value if getattr(key, "value", None) not in names]
    return yaml.MappingNode(node.tag, kept, node.start_mark, node.end_mark)


def _known(place: Place, otherwise: Place) -> Place:
    return place if place.line else otherwise


def _is_empty(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.tag.endswith(":null")


def _rule_problems(rule: Rule, codes: Mapping[str, Mapping[str, Entry]]) -> Iterator[str]:
    """Yield the problems of a rule whose single fields are valid, and what to change."""
    if rule.remediations:
        if rule.check or rule.codes or rule.beside or rule.excuses:
            yield "remediations stands alone; leave out check, codes, beside and excuses"
        return
    if not rule.check:
        yield "check is missing; write which check's findings it is about"
    elif rule.check not in codes:
        yield f"no code of the check {rule.check} is in the policy; correct its name, or add the check below codes"
    else:
        known = codes[rule.check]
        wanted = (*rule.codes, *(rule.beside.codes if rule.beside else ()))
        for code in wanted:
            if code == UNKNOWN_CODE or not any(each == code or each.startswith(f"{code}/") for each in known):
                yield f"code {code} of {rule.check} is not in the policy; correct it, or add it below codes"
    if rule.components > 1 and rule.per == "component":
        yield "components counts different ones, and per: component looks at one; write per: node"
