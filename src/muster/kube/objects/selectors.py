"""Label, field and node selectors, as the API server evaluates them.

Labels: https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#label-selectors. Node terms: the
scheduler's nodeaffinity helper (k8s.io/component-helpers).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from muster.kube.objects.affinity import LabelSelector, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from muster.kube.objects.node import Node
from muster.kube.objects.pod import PodSpec

IN, NOT_IN, EXISTS, DOES_NOT_EXIST, GT, LT = "In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"


class SelectorError(ValueError):
    """Not a selector."""


@dataclass(frozen=True, slots=True)
class Requirement:
    """One condition on one label. NotIn and DoesNotExist also hold for an absent label."""

    key: str
    operator: str
    values: tuple[str, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Returns whether `labels` meet the condition."""
        value = labels.get(self.key)
        operator = self.operator
        if operator == IN:
            return value is not None and value in self.values
        if operator == NOT_IN:
            return value is None or value not in self.values
        if operator == EXISTS:
            return value is not None
        if operator == DOES_NOT_EXIST:
            return value is None
        if operator in (GT, LT):
            return value is not None and len(self.values) == 1 and _compare(value, operator, self.values[0])
        raise SelectorError(f"unknown selector operator {operator!r}; use In, NotIn, Exists, DoesNotExist, Gt or Lt")

    def __str__(self) -> str:
        if self.operator in (IN, NOT_IN):
            if len(self.values) == 1:
                return f"{self.key}{'=' if self.operator == IN else '!='}{self.values[0]}"
            return f"{self.key} {'in' if self.operator == IN else 'notin'} ({','.join(self.values)})"
        if self.operator == EXISTS:
            return self.key
        if self.operator == DOES_NOT_EXIST:
            return f"!{self.key}"
        return f"{self.key}{'>' if self.operator == GT else '<'}{self.values[0]}"


@dataclass(frozen=True, slots=True)
class Selector:
    """Conditions that must all hold. Without conditions it matches every object; `nothing` matches none."""

    requirements: tuple[Requirement, ...] = ()
    nothing: bool = False

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Returns whether `labels` are selected."""
        return not self.nothing and all(requirement.matches(labels) for requirement in self.requirements)

    def __str__(self) -> str:
        """Return the form the API's labelSelector parameter takes."""
        return ",".join(map(str, self.requirements))


EVERYTHING = Selector()
NOTHING = Selector(nothing=True)


def parse_selector(text: str) -> Selector:
    """Parse `a=b,c!=d,e in (x,y),f notin (z),g,!h,i>1`. Raises SelectorError."""
    parts = _split(text)
    return Selector(tuple(_requirement(part, text) for part in parts))


def from_label_selector(selector: LabelSelector | None) -> Selector:
    """Convert a LabelSelector: None selects no object, an empty one selects every object."""
    if selector is None:
        return NOTHING
    equal = [Requirement(key, IN, (value,)) for key, value in selector.match_labels.items()]
    rules = [Requirement(rule.key, rule.operator, rule.values) for rule in selector.match_expressions]
    return Selector((*equal, *rules))


@dataclass(frozen=True, slots=True)
class FieldSelector:
    """Conditions `(field path, equal, value)` on fields; all must hold."""

    terms: tuple[tuple[str, bool, str], ...] = ()

    def matches(self, field: Callable[[str], str]) -> bool:
        """Returns whether an object is selected.

        `field` returns the value at a path such as `spec.nodeName`, "" if unset.
        """
        return all((field(path) == value) is equal for path, equal, value in self.terms)


def parse_field_selector(text: str) -> FieldSelector:
    r"""Parse `spec.nodeName=a,status.phase!=Running`. A value may contain `\\`, `\,` and `\=`; spaces count.

    Terms come in the order in which the API server reads them, which decides about which one it complains. Source:
    k8s.io/apimachinery pkg/fields/selector.go.

    Raises:
        SelectorError: the text is the API server's.
    """
    terms = []
    for part in sorted(filter(None, _FIELD_TERM.findall(text))):
        match = _FIELD_OPERATOR.search(part)
        if match is None:
            raise SelectorError(f"invalid selector: '{text}'; can't understand '{part}'")
        terms.append((part[: match.start()], match[0] != "!=", _unescaped(part[match.end() :])))
    return FieldSelector(tuple(terms))


_FIELD_TERM = re.compile(r"(?:\\.|[^\\,]|\\$)+", re.DOTALL)
_FIELD_OPERATOR = re.compile(r"!=|==?")
_ESCAPE = re.compile(r"\\(.?)|[,=]", re.DOTALL)


def _unescaped(value: str) -> str:
    def plain(match: re.Match[str]) -> str:
        if match[0] in (",", "="):
            raise SelectorError(f"invalid field selector: unescaped character in value: {ord(match[0])}")
        if match[1] not in ("\\", ",", "="):
            raise SelectorError(f"invalid field selector: invalid escape sequence: {match[0]}")
        return match[1]

    return _ESCAPE.sub(plain, value)


def node_term_matches(term: NodeSelectorTerm, labels: Mapping[str, str], name: str) -> bool:
    """Returns whether a node with these labels and this name matches a term; an empty term matches no node."""
    if not term.match_expressions and not term.match_fields:
        return False
    return _all_match(term.match_expressions, labels) and _all_match(term.match_fields, {"metadata.name": name})


def _all_match(rules: tuple[NodeSelectorRequirement, ...], values: Mapping[str, str]) -> bool:
    return all(Requirement(rule.key, rule.operator, rule.values).matches(values) for rule in rules)


def node_selector_matches(selector: NodeSelector, labels: Mapping[str, str], name: str) -> bool:
    """Returns whether one of the terms matches."""
    return any(node_term_matches(term, labels, name) for term in selector.node_selector_terms)


def pod_fits_node_selection(spec: PodSpec, node: Node) -> bool:
    """Returns whether `node` meets the pod's nodeSelector and required node affinity."""
    labels = node.metadata.labels
    if any(labels.get(key) != value for key, value in spec.node_selector.items()):
        return False
    affinity = spec.affinity.node_affinity if spec.affinity else None
    required = affinity.required_during_scheduling_ignored_during_execution if affinity else None
    return required is None or node_selector_matches(required, labels, node.name)


_NAME = r"[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?"
_KEY = rf"(?:[a-z0-9](?:[-a-z0-9.]*[a-z0-9])?/)?{_NAME}"
_VALUE = rf"(?:{_NAME})?"
_EQUALITY = re.compile(rf"({_KEY})\s*(==|=|!=)\s*({_VALUE})")
_SET = re.compile(rf"({_KEY})\s+(in|notin)\s*\(([^()]*)\)")
_PRESENCE = re.compile(rf"(!?)\s*({_KEY})")
_ORDER = re.compile(rf"({_KEY})\s*([<>])\s*(-?[0-9]+)")
_VALUE_FORM = re.compile(_VALUE)


def _requirement(part: str, text: str) -> Requirement:
    if match := _EQUALITY.fullmatch(part):
        return Requirement(match[1], NOT_IN if match[2] == "!=" else IN, (match[3],))
    if match := _SET.fullmatch(part):
        values = tuple(sorted({value.strip() for value in match[3].split(",")}))
        if all(_VALUE_FORM.fullmatch(value) for value in values):
            return Requirement(match[1], IN if match[2] == "in" else NOT_IN, values)
    if match := _PRESENCE.fullmatch(part):
        return Requirement(match[2], DOES_NOT_EXIST if match[1] else EXISTS)
    if match := _ORDER.fullmatch(part):
        return Requirement(match[1], GT if match[2] == ">" else LT, (match[3],))
    raise SelectorError(f"label selector {text!r}: {part!r} is not KEY=VALUE, KEY in (A,B), KEY, !KEY or KEY>N")


def _split(text: str) -> list[str]:
    """Split at commas outside parentheses."""
    if not text.strip():
        return []
    return [part.strip() for part in re.split(r",(?![^(]*\))", text)]


def _compare(value: str, operator: str, bound: str) -> bool:
    try:
        left, right = int(value), int(bound)
    except ValueError:
        return False
    return left > right if operator == GT else left < right
