"""Recognises the documents of the commands by their fields, so that an error can say which command takes a file."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import yaml

from muster.api.configtext import ConfigTextError, place_text
from muster.api.marked import NotYaml, Place, document

_RANGES: Final = frozenset({"nodeRanges", "podRanges", "serviceRanges", "researcherRanges", "nodeBlocks"})


class Kind(StrEnum):
    """What a document is, for messages."""

    PLAN = "a plan"
    REQUEST = "a request for a plan"
    ESTATE = "an estate"
    KUBECONFIG = "a kubeconfig"
    EMPTY = "empty"
    OTHER = "something else"


def compose(text: str, file: str = "") -> yaml.Node | str:
    """Return the parsed text; the text itself if it is not YAML, whose errors the caller's parser reports.

    Raises:
        ConfigTextError: the text is not a mapping. A long list or text is refused without parsing all of it.
    """
    try:
        events = yaml.parse(text, Loader=yaml.SafeLoader)
        first = next((each for each in events if isinstance(each, yaml.NodeEvent)), None)
    except (yaml.YAMLError, RecursionError):
        return text
    if first is not None and not isinstance(first, yaml.MappingStartEvent):
        raise ConfigTextError(
            f"{place_text(Place(1, 1), file)}not a mapping of fields; give a request, an estate, a plan or a kubeconfig"
        )
    try:
        return document(text) or text
    except NotYaml:
        return text


def kind_of(root: yaml.Node | str) -> Kind:
    """Return the kind of a composed document."""
    if not isinstance(root, yaml.MappingNode):
        return Kind.EMPTY if isinstance(root, str) and not root.strip() else Kind.OTHER
    fields = {str(key.value): value for key, value in root.value}
    kind = fields.get("kind")
    named = kind.value if isinstance(kind, yaml.ScalarNode) else ""
    if named == "NetworkPlan":
        return Kind.PLAN
    # kubectl accepts a kubeconfig without its kind.
    if named == "Config" or "contexts" in fields:
        return Kind.KUBECONFIG
    clusters = fields.get("clusters")
    if named or not isinstance(clusters, yaml.SequenceNode):
        return Kind.OTHER
    inner = {str(key.value) for each in clusters.value if isinstance(each, yaml.MappingNode) for key, _ in each.value}
    if inner & _RANGES:
        return Kind.ESTATE
    # A request has no ranges. The rules for an estate would find nothing in it.
    return Kind.REQUEST if "supernets" in fields else Kind.OTHER
