"""Requests to the instance metadata service of a cloud, by a link-local address. They block, so use a thread.

Metadata lags behind the cloud's API (amazon-vpc-cni-k8s#3887, #1967), so only what never changes is read from it: which
machine this is, and its token.
"""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Final

from muster.network.addresses.errors import Reason
from muster.network.addresses.providers.base import ProviderError

ADDRESS: Final = "http://169.254.169.254"
TIMEOUT_S: Final = 5.0
_ANSWER_MAX: Final = 1 << 20


def fetch(url: str, headers: Mapping[str, str], method: str = "GET") -> bytes:
    """Return the body of an answer, without a proxy. Raises ProviderError."""
    request = urllib.request.Request(url, headers=dict(headers), method=method)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=TIMEOUT_S) as answer:
            body: bytes = answer.read(_ANSWER_MAX)
            return body
    except urllib.error.HTTPError as error:
        with error:
            reason = Reason.THROTTLED if error.code == 429 else Reason.UNREACHABLE
            raise ProviderError(reason, f"instance metadata {url}: HTTP {error.code}") from None
    except OSError as error:
        message = f"instance metadata {url}: {error}; the agent needs the node's network and access to metadata"
        raise ProviderError(Reason.UNREACHABLE, message) from None
