"""Selections of lists and watches.

Only selectors that this module surely reads as kube-apiserver does are accepted; the others are forwarded, which also
gives a wrong one kube-apiserver's own error text.
"""

from __future__ import annotations

import functools
import re
from typing import Final

from muster.kube.objects.selectors import SelectorError, parse_field_selector, parse_selector
from muster.readcache.hub.selection import Selection
from muster.readcache.kinds import CachedKind
from muster.readcache.wire.selectable import selectable_fields

_INDEXES: Final = {("", "pods"): ("spec.nodeName",), ("resource.k8s.io", "resourceslices"): ("spec.nodeName",)}
"""Fields for which kube-apiserver's watch cache has an index."""

_NAME: Final = r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_KEY: Final = rf"(?:[a-z0-9](?:[-a-z0-9.]{{0,200}}[a-z0-9])?/)?{_NAME}"
_LABEL: Final = rf"{_KEY}(?:(?:==?|!=)(?:{_NAME})?| (?:in|notin) \({_NAME}(?:, ?{_NAME})*\)|[<>][0-9]{{1,15}})?|!{_KEY}"
_LABELS: Final = re.compile(rf"(?:{_LABEL})(?:,(?:{_LABEL}))*")
_FIELDS: Final = re.compile(
    r"[A-Za-z0-9._-]+(?:==?|!=)[A-Za-z0-9._:/-]*(?:,[A-Za-z0-9._-]+(?:==?|!=)[A-Za-z0-9._:/-]*)*"
)
_KEYWORDS: Final = re.compile(r"\b(?:in|notin)\b(?! \()")


def indexes_of(kind: CachedKind) -> tuple[str, ...]:
    """Returns the fields that the store of a kind should index."""
    return _INDEXES.get((kind.resource.group, kind.resource.plural), ())


@functools.lru_cache(maxsize=8192)
def selection_of(kind: CachedKind, namespace: str, labels: str, fields: str) -> Selection | None:
    """Returns the selection of a list or watch, None if the API server must answer."""
    if labels and (not _LABELS.fullmatch(labels) or _KEYWORDS.search(labels)):
        return None
    if fields and not _FIELDS.fullmatch(fields):
        return None
    known = selectable_fields(kind)
    try:
        terms = tuple((known.internal(name), equal, value) for name, equal, value in parse_field_selector(fields).terms)
        return Selection(namespace, parse_selector(labels), terms, indexes_of(kind))
    except SelectorError:
        return None
