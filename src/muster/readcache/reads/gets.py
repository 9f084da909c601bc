"""GET of one object. Without resourceVersion it is forwarded, as kube-apiserver then reads from etcd."""

from __future__ import annotations

from collections.abc import Mapping

from muster.readcache.reads.freshness import Limits, age_headers, at_least, number_error, parse_version
from muster.readcache.reads.sources import Source
from muster.readcache.reads.statuses import not_found, unreadable_version
from muster.readcache.request import Answer, Forward, Target


async def answer(target: Target, query: Mapping[str, str], source: Source, limits: Limits) -> Answer | Forward:
    """Answers a get. Raises Refusal."""
    version = parse_version(query.get("resourceVersion", ""))
    if not query.get("resourceVersion"):
        return Forward("get without a version")
    if version is None:
        raise unreadable_version(number_error(query["resourceVersion"]))
    if not source.store.version:
        return Forward("no state yet")
    headers = age_headers(source, limits)
    await at_least(source, version, limits)
    found = source.store.get(f"{target.namespace}/{target.name}" if target.namespace else target.name)
    if found is None:
        raise not_found(target.kind.resource, target.name)
    return Answer(200, source.format.media_type, (source.format.single(found.data),), headers)
