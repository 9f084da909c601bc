"""Other readers of a server that no dashboard, rule or query log shows: federation and remote write."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import yaml

from muster.telemetry.promql.errors import BadQuery
from muster.telemetry.promql.expression import parse_selector
from muster.telemetry.promql.matcher import NAME_LABEL, Matcher
from muster.telemetry.usage.inputs.files import InputError
from muster.telemetry.usage.pattern import known, matches
from muster.telemetry.usage.selection import JOB_LABEL

_SEPARATOR: Final = ";"


def configs_of(text: str, name: str) -> list[dict[str, Any]]:
    """Return the documents of a file as data: a configuration of Prometheus, or objects. Raises InputError."""
    try:
        found = list(yaml.safe_load_all(text))
    except (yaml.YAMLError, RecursionError) as error:
        raise InputError(f"{name} is not YAML: {' '.join(str(error).split())[:300]}") from error
    return [each for each in found if isinstance(each, dict)]


def federated_selectors(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield the selectors by which another server reads this one: `match[]` of its jobs that scrape /federate."""
    jobs = config.get("scrape_configs")
    for job in jobs if isinstance(jobs, list) else ():
        if isinstance(job, dict) and str(job.get("metrics_path", "")).rstrip("/").endswith("/federate"):
            params = job.get("params")
            values = params.get("match[]") if isinstance(params, dict) else None
            yield from (str(each) for each in (values if isinstance(values, list) else ()))


def checked_selector(text: str) -> str:
    """Return a selector as it is. Raises InputError if it is not one."""
    try:
        parse_selector(text)
    except BadQuery as error:
        raise InputError(f"{text!r} is not a selector of series: {error}") from error
    return text


class RemoteWrite:
    """What a server sends to other servers, by `remote_write` of its configuration."""

    def __init__(self, configs: Iterable[Mapping[str, Any]]) -> None:
        lists = [each.get("remote_write") for each in configs]
        written = [queue for each in lists if isinstance(each, list) for queue in each]
        self._queues = [each for each in written if isinstance(each, dict)]

    @property
    def urls(self) -> list[str]:
        """Addresses, without what may be secret in them."""
        return [str(each.get("url", "")).partition("?")[0].rpartition("@")[2] for each in self._queues]

    def sends(self, name: str, job: str) -> bool:
        """Returns whether series of a metric may be sent to one of the servers."""
        return any(_passes(each.get("write_relabel_configs"), name, job) for each in self._queues)


def _passes(steps: Any, name: str, job: str) -> bool:
    """Returns whether relabeling may keep a series. Steps that depend on more than name and job are left out."""
    values = {NAME_LABEL: name, JOB_LABEL: job}
    for step in steps if isinstance(steps, list) else ():
        action = str(step.get("action", "replace")).lower() if isinstance(step, dict) else "replace"
        if action not in ("keep", "drop"):
            if action in ("replace", "lowercase", "uppercase") and step.get("target_label") not in values:
                continue
            if action in ("labeldrop", "labelkeep"):
                continue
            return True
        labels = step.get("source_labels") or ()
        if not all(label in values for label in labels):
            continue
        joined = str(step.get("separator", _SEPARATOR)).join(values[label] for label in labels)
        condition = Matcher(NAME_LABEL, "=~", str(step.get("regex", "(.*)")))
        if known(condition) and matches(condition, joined) != (action == "keep"):
            return False
    return True
