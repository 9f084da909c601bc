"""The user's files with drop rules added: prometheus.yml, ServiceMonitors and PodMonitors."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import yaml

from muster.telemetry.usage.proposal.droprules import DropRule
from muster.telemetry.usage.proposal.insertion import Insertion, Style, insertion, with_insertions
from muster.telemetry.usage.proposal.yamlplaces import Node, documents

PROMETHEUS: Final = Style("metric_relabel_configs", "source_labels")
OPERATOR: Final = Style("metricRelabelings", "sourceLabels")
_MONITORS: Final[Mapping[str, tuple[str, str]]] = {
    "ServiceMonitor": ("serviceMonitor", "endpoints"),
    "PodMonitor": ("podMonitor", "podMetricsEndpoints"),
    "Probe": ("probe", ""),
    "ScrapeConfig": ("scrapeConfig", ""),
}
"""Of each kind, how its scrape pools begin, and its list of endpoints; "" if it has one scrape pool."""
_BY_HAND: Final = "its list of steps is a reference, shared by an anchor, or merged from another part of the file"
_Loader: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class ConfigError(Exception):
    """A configuration cannot be read; the message says why."""


@dataclass
class Change:
    """A file with rules added.

    Attributes:
        path: of the file, as the user wrote it.
        before: its text.
        after: its text with the rules.
        pools: scrape pools whose rules were added.
        by_hand: scrape pools of this file to which rules must be added by hand, with the reason.
    """

    path: Path
    before: str
    after: str = ""
    pools: set[str] = field(default_factory=set)
    by_hand: dict[str, str] = field(default_factory=dict)

    def diff(self, name: str = "") -> str:
        """Return the unified diff of this change; "" if nothing changes.

        Args:
            name: of the file in the diff; the path without it. `patch` wants a tab after one with spaces.
        """
        title = name or str(self.path)
        title += "\t" if " " in title else ""
        lines = difflib.unified_diff(_lines(self.before), _lines(self.after), title, title)
        return "".join(each if each.endswith("\n") else f"{each}\n\\ No newline at end of file\n" for each in lines)


def patch_names(paths: Sequence[Path], folder: Path) -> tuple[list[str], str]:
    """Return the names of files in a diff, and the command that applies it in this folder.

    `patch` refuses absolute names and those with `..`. So if all files are below the folder, their names are relative
    to it. Otherwise all are absolute, and `patch` works in the root folder.
    """
    absolute = [Path(os.path.abspath(folder / path)) for path in paths]
    if all(each.is_relative_to(folder) for each in absolute):
        return [str(each.relative_to(folder)) for each in absolute], "patch --binary -p0"
    return [str(each) for each in absolute], "patch --binary -d / -p1"


def _lines(text: str) -> list[str]:
    """Return the lines as `patch` reads them: other separators of Unicode do not end one."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


@dataclass(frozen=True)
class _Spot:
    """A mapping of a file that configures one scrape pool, as places and as data."""

    pool: str
    node: Node
    data: dict[str, Any]
    style: Style
    dash_indent: int


@dataclass(frozen=True)
class _Addition:
    """Rules for one pool, and the text that adds them."""

    spot: _Spot
    rules: Sequence[tuple[DropRule, str]]
    insertion: Insertion


def changed(path: Path, text: str, rules: Mapping[str, Sequence[tuple[DropRule, str]]]) -> Change:
    """Add rules to a file, and check that its data afterwards is what it was, with the rules.

    Args:
        path: of the file.
        text: of the file.
        rules: of each scrape pool, each with a comment.

    Raises:
        ConfigError: the file is neither a configuration of Prometheus nor has it ServiceMonitors or PodMonitors.
    """
    change = Change(path, text, text)
    try:
        data = list(yaml.load_all(text, Loader=_Loader))
        roots = list(documents(text))
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"{path} is not YAML: {' '.join(str(error).split())[:300]}") from error
    spots = [
        replace(spot, pool=_pool_of(spot.pool, rules))
        for root, each in zip(roots, data, strict=True)
        for spot in _spots(root, each)
    ]
    if not spots:
        raise ConfigError(f"{path} has no scrape_configs and no monitors of an operator")
    found = [
        (spot, rules[spot.pool], insertion(spot.node, spot.style, rules[spot.pool], spot.dash_indent))
        for spot in spots
        if rules.get(spot.pool)
    ]
    additions = [_Addition(spot, wanted, each) for spot, wanted, each in found if each is not None]
    if not _adds_only(text, additions, data):
        additions = [each for each in additions if _adds_only(text, [each], data)]
    change.pools = {each.spot.pool for each in additions}
    change.by_hand = {spot.pool: _BY_HAND for spot, _, _ in found if spot.pool not in change.pools}
    change.after = with_insertions(text, [each.insertion for each in additions])
    return change


def _pool_of(pool: str, pools: Iterable[str]) -> str:
    """Return the pool's real name if its object has no namespace in the file, as below a kustomization."""
    kind, slashes, rest = pool.partition("//")
    if not slashes:
        return pool
    found = [each for each in pools if each.startswith(f"{kind}/") and each.split("/", 2)[2:] == [rest]]
    return found[0] if len(found) == 1 else pool


def _adds_only(text: str, additions: Sequence[_Addition], data: list[Any]) -> bool:
    """Returns whether additions change the data of a file only by the rules of their pools."""
    try:
        after = list(yaml.load_all(with_insertions(text, [each.insertion for each in additions]), Loader=_Loader))
    except yaml.YAMLError:
        return False
    restored = []
    try:
        for each in additions:
            fields, style = each.spot.data, each.spot.style
            restored.append((fields, style.key, fields.get(style.key), style.key in fields))
            fields[style.key] = [*(fields.get(style.key) or ()), *(style.step(rule) for rule, _ in each.rules)]
        return bool(after == data)
    finally:
        for fields, key, value, existed in reversed(restored):
            fields[key] = value
            if not existed:
                del fields[key]


def _spots(root: Node, data: Any) -> Iterator[_Spot]:
    if root.kind == "list" and isinstance(data, list):  # additionalScrapeConfigs of an operator
        yield from _job_spots(root, data, 0)
        return
    if root.kind != "mapping" or not isinstance(data, dict):
        return
    kind = data.get("kind")
    if isinstance(kind, str) and kind in _MONITORS:
        yield from _monitor_spots(root, data, *_MONITORS[kind])
        return
    jobs, items = root.get("scrape_configs"), root.get("items")
    if jobs is not None and jobs.kind == "list":
        yield from _job_spots(jobs, data["scrape_configs"], _dash_indent(root, jobs))
    elif items is not None and items.kind == "list":
        for node, each in zip(items.items, data["items"], strict=True):
            yield from _spots(node, each)


def _job_spots(jobs: Node, data: Sequence[Any], indent: int) -> Iterator[_Spot]:
    for node, each in zip(jobs.items, data, strict=True):
        if node.kind == "mapping" and isinstance(each, dict) and "job_name" in each:
            yield _Spot(str(each["job_name"]), node, each, PROMETHEUS, indent)


def _monitor_spots(root: Node, data: dict[str, Any], prefix: str, key: str) -> Iterator[_Spot]:
    spec, metadata = root.get("spec"), data.get("metadata")
    if spec is None or spec.kind != "mapping" or not isinstance(metadata, dict):
        return
    name = f"{metadata.get('namespace', '')}/{metadata.get('name', '')}"
    if not key:
        yield _Spot(f"{prefix}/{name}", spec, data["spec"], OPERATOR, 0)
        return
    endpoints = spec.get(key)
    if endpoints is None or endpoints.kind != "list":
        return
    for number, (node, each) in enumerate(zip(endpoints.items, data["spec"][key], strict=True)):
        if node.kind == "mapping" and isinstance(each, dict):
            yield _Spot(f"{prefix}/{name}/{number}", node, each, OPERATOR, _dash_indent(spec, endpoints))


def _dash_indent(owner: Node, items: Node) -> int:
    return 0 if items.flow or items.start[1] <= owner.start[1] else items.start[1] - owner.start[1]
