"""Rules about the search list of pods: with `ndots:5` each external name costs several requests.

A pod's resolv.conf has `options ndots:5` and at least three search domains. A name with fewer than five dots is first
looked up in each of them, for IPv4 and IPv6 (kubernetes.io, "DNS for Services and Pods").
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from muster.api.finding import Culprit, Finding, Fix, Measure, Severity
from muster.network.checks.cluster.evidence import DnsEvidence

NDOTS: Final = 5
SEARCH_DOMAINS: Final = 3
ABSENT_SHARE: Final = 0.3
"""A larger share of answers that say the name does not exist is reported."""
RESPONSES_MIN: Final = 1000
_WHO: Final = 10
_HOST: Final = re.compile(
    r"(?:[a-z][a-z0-9+.-]*://)(?:[^/@\s]*@)?((?:[a-z0-9](?:[a-z0-9-]*[a-z0-9])?\.)+[a-z]{2,})(?![\w.-])", re.IGNORECASE
)
_INSIDE: Final = (".svc", ".local", ".internal", ".cluster")


def external_hosts(text: str) -> list[str]:
    """Return the hosts of URLs in a text that are names outside of the cluster and are searched with `ndots:5`."""
    hosts = (match.lower() for match in _HOST.findall(text))
    return [host for host in hosts if host.count(".") < NDOTS and not host.endswith(_INSIDE)]


def find(evidence: DnsEvidence) -> Iterator[Finding]:
    """Yield at most one finding.

    The evidence is the share of NXDOMAIN in the servers' answers. If their metrics cannot be read, pods that name
    external hosts are the evidence.
    """
    clients, responses = evidence.clients, evidence.responses
    if clients is None or not clients.default_ndots:
        return
    measures = []
    if responses is not None:
        if responses.total < RESPONSES_MIN or responses.absent < ABSENT_SHARE * responses.total:
            return
        source = f"coredns_dns_responses_total of {responses.servers} servers, since their start"
        measures.append(
            Measure("answers that the name does not exist", 100 * responses.absent / responses.total, "%", source)
        )
    elif not clients.external:
        return
    external = sum(clients.external.values())
    measures += [
        Measure("pods with the default ndots:5", clients.default_ndots, "", f"a sample of {clients.sampled} pods"),
        Measure("of these, pods that name external hosts", external, "", "their commands, arguments and environment"),
    ]
    who = sorted(clients.external, key=lambda name: (-clients.external[name], name))[:_WHO]
    yield Finding(
        id="dns-ndots",
        severity=Severity.WARNING,
        title=f"Each external name costs {2 * (SEARCH_DOMAINS + 1)} DNS requests instead of 2, because pods search "
        "the cluster's domains first.",
        who=tuple(Culprit("Workload", name, clients.external[name] / clients.default_ndots) for name in who),
        evidence=tuple(measures),
        fix=Fix(
            "Set ndots to 2 in the pods' dnsConfig, or end external names with a dot. Names such as SERVICE.NAMESPACE "
            "still work with ndots 2. CoreDNS's plugin autopath helps without a change of pods, at a cost in memory.",
            manifest='spec:\n  dnsConfig:\n    options:\n    - {name: ndots, value: "2"}',
        ),
    )  # fmt: skip
