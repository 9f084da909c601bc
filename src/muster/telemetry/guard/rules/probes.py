"""Probes through the client of the API, for programs that are not a guard."""

from __future__ import annotations

from collections.abc import Sequence

from muster.telemetry.guard.pricing.pricer import ProbeFailed
from muster.telemetry.prometheus.client import PrometheusClient
from muster.telemetry.prometheus.errors import PrometheusError


class ClientProbes:
    """Asks the server of a client, with the client's credentials and tenant.

    Args:
        client: an open client.
    """

    def __init__(self, client: PrometheusClient) -> None:
        self._client = client

    async def get(
        self, path: str, parameters: Sequence[tuple[str, str]], tenant: str, timeout_s: float, max_bytes: int
    ) -> bytes:
        """Return the body of a GET with status 200. Raises ProbeFailed.

        Args:
            path: below the prefix of the API.
            parameters: in the order to send.
            tenant: not used: the client has the tenant.
            timeout_s: deadline.
            max_bytes: most bytes of the answer.
        """
        try:
            body = await self._client.page(path, timeout_s, parameters)
        except PrometheusError as error:
            raise ProbeFailed(error.message) from error
        if len(body) > max_bytes:
            raise ProbeFailed(f"the answer to {path} has more than {max_bytes} bytes")
        return body
