"""Sends requests to a Prometheus server: a deadline and a limit of bytes for each, typed answers."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import aiohttp
import msgspec

from muster.telemetry.prometheus.answers import (
    BuildInfo,
    Cardinality,
    Envelope,
    Labels,
    Line,
    LoadedConfig,
    Metadata,
    QueryResult,
    RuleGroup,
    RuleGroups,
    RuntimeInfo,
    Sample,
    Target,
    Targets,
    TsdbStatus,
)
from muster.telemetry.prometheus.errors import PrometheusError, Reason

T = TypeVar("T")
Pairs = list[tuple[str, str]]

TENANT_HEADER: Final = "X-Scope-OrgID"
"""Names the tenant for Mimir, Cortex, Loki and proxies before Thanos."""
_GET_BYTES_MAX: Final = 4096
"""Longer parameters are sent as a form: servers and proxies limit the length of addresses."""
_SECRET_BYTES_MAX: Final = 64 << 10
_MESSAGE_MAX: Final = 500
_UNREADABLE: Final = (msgspec.DecodeError, ValueError, RecursionError)
"""Errors of decoding. A ValueError is also text that is not UTF-8; JSON can be nested too deeply."""


class _VectorSample(msgspec.Struct):
    metric: dict[str, str]
    value: tuple[float, str] | None = None


class _MatrixLine(msgspec.Struct):
    metric: dict[str, str]
    values: tuple[tuple[float, str], ...] = ()


class PrometheusClient:
    """Asks one server. An async context manager; use it from one event loop.

    Every method raises PrometheusError. The client follows no redirects, so that a token reaches only this server.

    Args:
        url: address of the server, with the prefix of its API if it has one: http://127.0.0.1:9090.
        headers: more headers of each request, such as the tenant.
        token_file: file with a bearer token, read again for each request, since kubelets replace such files.
        user: name for basic authentication.
        password_file: file with its password.
        ca_file: trusted authorities (PEM); None: those of the system.
        timeout_s: deadline of each request, unless the request has its own.
        max_bytes: most bytes of an answer.
    """

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        token_file: Path | None = None,
        user: str = "",
        password_file: Path | None = None,
        ca_file: Path | None = None,
        timeout_s: float = 30.0,
        max_bytes: int = 64 << 20,
    ) -> None:
        """Check the address. Raises ValueError with what to write."""
        self.url = server_url(url)
        self._headers = dict(headers or {})
        self._token_file = token_file
        self._user = user
        self._password_file = password_file
        self._ca_file = ca_file
        self._timeout_s = timeout_s
        self._max_bytes = max_bytes
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        """Open the client. Raises PrometheusError if the file of authorities cannot be used."""
        tls: ssl.SSLContext | bool = True
        if self._ca_file is not None:
            try:
                tls = ssl.create_default_context(cafile=str(self._ca_file))
            except OSError as error:  # SSLError is one
                raise PrometheusError(0, f"{self._ca_file}: {error.strerror or error}", "unreachable") from error
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls), headers=self._headers)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def query(self, expression: str, at_s: float | None = None, timeout_s: float | None = None) -> list[Sample]:
        """Evaluate an expression at a time. A scalar is one sample without labels.

        Args:
            expression: PromQL.
            at_s: Unix seconds; None: now.
            timeout_s: also sent to the server, which then ends the query itself.
        """
        pairs = [("query", expression), *_time("time", at_s), *_timeout(timeout_s)]
        result = await self._ask("/api/v1/query", pairs, QueryResult, timeout_s)
        try:
            if result.result_type == "scalar":
                at, value = msgspec.json.decode(result.result, type=tuple[float, str])
                return [Sample({}, at, float(value))]
            if result.result_type != "vector":
                raise PrometheusError(200, f"the query has a {result.result_type} as its result, not a vector")
            return _vector(result.result)
        except _UNREADABLE as error:
            raise self._not_prometheus("/api/v1/query", error) from error

    async def value(self, expression: str, at_s: float | None = None, timeout_s: float | None = None) -> float | None:
        """Return the value of an expression with one series; None without any."""
        found = await self.query(expression, at_s, timeout_s)
        return found[0].value if found else None

    async def query_range(
        self, expression: str, start_s: float, end_s: float, step_s: float, timeout_s: float | None = None
    ) -> list[Line]:
        """Evaluate an expression at each step. Times are Unix seconds."""
        pairs = [("query", expression), *_time("start", start_s), *_time("end", end_s), ("step", f"{step_s:g}")]
        result = await self._ask("/api/v1/query_range", [*pairs, *_timeout(timeout_s)], QueryResult, timeout_s)
        try:
            found = msgspec.json.decode(result.result, type=list[_MatrixLine])
            return [Line(each.metric, tuple((at, float(value)) for at, value in each.values)) for each in found]
        except _UNREADABLE as error:
            raise self._not_prometheus("/api/v1/query_range", error) from error

    async def series(self, match: Sequence[str], start_s: float, end_s: float, limit: int) -> list[Labels]:
        """Return labels of series that match one of the selectors.

        Servers before 2.54 ignore `limit` and have no time limit for this request: ask only narrow selectors, with a
        short range. `max_bytes` protects this client, not the server.
        """
        pairs = [*(("match[]", each) for each in match), *_time("start", start_s), *_time("end", end_s)]
        found = await self._ask("/api/v1/series", [*pairs, ("limit", str(limit))], list[dict[str, str]])
        return list(found)

    async def label_values(
        self,
        label: str,
        match: Sequence[str] = (),
        limit: int = 0,
        start_s: float | None = None,
        end_s: float | None = None,
    ) -> list[str]:
        """Return values of a label; `limit` 0 means all. Servers before 2.54 ignore `limit`."""
        pairs = [*(("match[]", each) for each in match), *_time("start", start_s), *_time("end", end_s)]
        if limit:
            pairs.append(("limit", str(limit)))
        return await self._ask(f"/api/v1/label/{quote(label, safe='')}/values", pairs, list[str])

    async def metadata(self, limit: int = 0) -> dict[str, list[Metadata]]:
        """Return metadata of each metric; `limit` is the most metrics, 0 means all."""
        return await self._ask("/api/v1/metadata", _limit(limit), dict[str, list[Metadata]])

    async def targets(self) -> list[Target]:
        """Return the targets that the server scrapes now."""
        return list((await self._ask("/api/v1/targets", [("state", "active")], Targets)).active_targets)

    async def tsdb_status(self, limit: int = 0) -> TsdbStatus:
        """Return statistics of the head, with `limit` entries in each list (10 if 0, and always before 2.45)."""
        more = [("topN", str(limit))] if limit else []  # the name in VictoriaMetrics
        return await self._ask("/api/v1/status/tsdb", [*_limit(limit), *more], TsdbStatus)

    async def cardinality(self, label: str, limit: int) -> Cardinality:
        """Return the values of a label with most series, from Mimir ("Label values cardinality" of its HTTP API)."""
        path = "/api/v1/cardinality/label_values"
        status, body = await self._send(path, [("label_names[]", label), *_limit(limit)], None)
        if status != HTTPStatus.OK:
            raise PrometheusError(status, f"{self.url}{path} answered {status}: {_text(body)}")
        try:
            return msgspec.json.decode(body, type=Cardinality)
        except _UNREADABLE as error:
            raise PrometheusError(
                status, f"the answer of {self.url}{path} is not one of Mimir's API: {error}"
            ) from error

    async def rules(self) -> list[RuleGroup]:
        """Return the groups of rules that the server evaluates."""
        return list((await self._ask("/api/v1/rules", [], RuleGroups)).groups)

    async def buildinfo(self) -> BuildInfo:
        """Return the version of the server."""
        return await self._ask("/api/v1/status/buildinfo", [], BuildInfo)

    async def runtimeinfo(self) -> RuntimeInfo:
        """Return properties of the server's process."""
        return await self._ask("/api/v1/status/runtimeinfo", [], RuntimeInfo)

    async def flags(self) -> dict[str, str]:
        """Return the values of the server's command-line flags."""
        return await self._ask("/api/v1/status/flags", [], dict[str, str])

    async def config(self) -> str:
        """Return the configuration that the server uses, as YAML."""
        return (await self._ask("/api/v1/status/config", [], LoadedConfig)).yaml

    async def page(
        self, path: str, timeout_s: float | None = None, parameters: Iterable[tuple[str, str]] = ()
    ) -> bytes:
        """Return the body of any path of this server, such as /metrics."""
        status, body = await self._send(path, list(parameters), timeout_s)
        if status != HTTPStatus.OK:
            raise PrometheusError(status, f"{self.url}{path} answered {status}: {_text(body)}")
        return body

    async def _ask(self, path: str, pairs: Pairs, type_: type[T], timeout_s: float | None = None) -> T:
        status, body = await self._send(path, pairs, timeout_s)
        try:
            envelope = msgspec.json.decode(body, type=Envelope)
        except _UNREADABLE as error:
            if status == HTTPStatus.OK:
                raise self._not_prometheus(path, error) from error
            raise PrometheusError(status, f"{self.url}{path} answered {status}: {_text(body)}") from error
        if envelope.status != "success" or status != HTTPStatus.OK:
            reason: Reason = "timeout" if envelope.error_type in ("timeout", "canceled") else "refused"
            message = envelope.error[:_MESSAGE_MAX] or "no reason"
            raise PrometheusError(status, f"{self.url}{path} answered {status}: {message}", reason)
        try:
            return msgspec.json.decode(envelope.data, type=type_)
        except _UNREADABLE as error:
            raise self._not_prometheus(path, error) from error

    async def _send(self, path: str, pairs: Pairs, timeout_s: float | None) -> tuple[int, bytes]:
        """Send a request and return status and body."""
        if self._session is None:
            raise RuntimeError("the client is not open: use it in `async with`")
        limit_s = timeout_s or self._timeout_s
        headers = self._credentials()
        encoded = urlencode(pairs)
        try:
            async with asyncio.timeout(limit_s):
                if len(encoded) > _GET_BYTES_MAX:
                    request = self._session.post(
                        f"{self.url}{path}", data=pairs, headers=headers, allow_redirects=False
                    )
                else:
                    request = self._session.get(
                        f"{self.url}{path}", params=pairs, headers=headers, allow_redirects=False
                    )
                async with request as answer:
                    if answer.status // 100 == 3:
                        to = answer.headers.get("Location", "")
                        message = f"{self.url}{path} redirects to {to[:_MESSAGE_MAX]}: give that server's address"
                        raise PrometheusError(answer.status, message, "not-prometheus")
                    return answer.status, await self._body(answer, path)
        except TimeoutError as error:
            message = f"{self.url}{path} did not answer completely within {limit_s:g} s"
            raise PrometheusError(0, message, "timeout") from error
        except aiohttp.ClientConnectorCertificateError as error:
            why = getattr(error.certificate_error, "verify_message", "") or str(error.certificate_error)
            message = f"the certificate of {self.url} is not trusted: {why}"
            raise PrometheusError(0, message, "untrusted") from error
        except aiohttp.ClientConnectorSSLError as error:
            why = error.os_error.strerror or str(error.os_error)
            raise PrometheusError(0, f"{self.url} does not speak TLS as expected: {why}", "untrusted") from error
        except aiohttp.ClientConnectorError as error:
            number = error.os_error.errno
            why = os.strerror(number) if number is not None and number > 0 else str(error.os_error)
            raise PrometheusError(0, f"{self.url} cannot be reached: {why}", "unreachable") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            message = f"{self.url}{path} gave no HTTP answer: {str(error) or type(error).__name__}"
            raise PrometheusError(0, message, "unreachable") from error

    async def _body(self, answer: aiohttp.ClientResponse, path: str) -> bytes:
        parts: list[bytes] = []
        size = 0
        async for part in answer.content.iter_any():
            size += len(part)
            if size > self._max_bytes:
                message = f"the answer of {self.url}{path} has more than {self._max_bytes} bytes"
                raise PrometheusError(answer.status, message, "too-big")
            parts.append(part)
        return b"".join(parts)

    def _credentials(self) -> dict[str, str]:
        if self._token_file is not None:
            return {"Authorization": f"Bearer {_secret(self._token_file)}"}
        if self._password_file is not None:
            return {"Authorization": aiohttp.BasicAuth(self._user, _secret(self._password_file), "utf-8").encode()}
        return {}

    def _not_prometheus(self, path: str, error: Exception) -> PrometheusError:
        return PrometheusError(
            200, f"the answer of {self.url}{path} is not one of Prometheus' API: {error}", "not-prometheus"
        )


def server_url(text: str) -> str:
    """Return the address of a server without a slash at the end. Raises ValueError with what to write."""
    try:
        parts = urlsplit(text)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and not parts.query and not parts.fragment
        _ = parts.port
    except ValueError:
        valid = False
    if not valid:
        raise ValueError(f"{text!r} is not the address of a Prometheus server: write http://HOST:PORT")
    if parts.username or parts.password:
        raise ValueError("the address contains a user or password: name a file with the secret instead")
    path = parts.path.rstrip("/").removesuffix("/api/v1")
    return f"{parts.scheme}://{parts.netloc}{path}"


def _secret(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            text = opened.read(_SECRET_BYTES_MAX).decode().strip()
    except OSError as error:
        raise PrometheusError(0, f"{file}: {error.strerror or error}", "unreachable") from error
    except UnicodeDecodeError as error:
        raise PrometheusError(0, f"{file} is not text", "unreachable") from error
    if not text or any(not character.isprintable() for character in text):
        raise PrometheusError(0, f"{file} does not hold one line with a secret", "unreachable")
    return text


def _text(body: bytes) -> str:
    """Return the beginning of a body that is not JSON, on one line."""
    return " ".join(body[:_MESSAGE_MAX].decode(errors="replace").split()) or "nothing"


def _vector(raw: msgspec.Raw) -> list[Sample]:
    """Decode a vector. Native histograms, which have no single value, are left out."""
    found = msgspec.json.decode(raw, type=list[_VectorSample])
    return [Sample(each.metric, each.value[0], float(each.value[1])) for each in found if each.value is not None]


def _time(name: str, at_s: float | None) -> Pairs:
    return [] if at_s is None else [(name, f"{at_s:.3f}")]


def _timeout(timeout_s: float | None) -> Pairs:
    return [] if timeout_s is None else [("timeout", f"{timeout_s:g}")]


def _limit(limit: int) -> Pairs:
    return [("limit", str(limit))] if limit else []


def matchers(pairs: Iterable[tuple[str, str]]) -> str:
    """Return a selector of equal labels: `{job="node",le="0.5"}`. The values are escaped."""
    return "{" + ",".join(f'{name}="{escaped(value)}"' for name, value in pairs) + "}"


def escaped(value: str) -> str:
    """Return a value as it stands between double quotes in PromQL."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
