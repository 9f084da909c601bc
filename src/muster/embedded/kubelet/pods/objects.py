"""Reads ConfigMaps and Secrets for pods, and gets tokens for their service accounts."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Mapping

from muster.kube.client import Client
from muster.kube.errors import ApiError, NotFound
from muster.kube.objects.auth import BoundObjectReference, TokenRequest, TokenRequestSpec
from muster.kube.objects.core import ConfigMap, Secret
from muster.kube.objects.pod import Pod

_SHORTEST_TOKEN_S = 600


class MissingObject(Exception):
    """An object that a pod needs does not exist or may not be read."""


class ObjectSource:
    """Reads ConfigMaps and Secrets, each at most once per `fresh_s` seconds for all pods."""

    def __init__(self, client: Client, fresh_s: float = 1.0) -> None:
        self._client = client
        self._fresh_s = fresh_s
        self._cache: dict[tuple[str, str, str], tuple[float, Mapping[str, bytes]]] = {}

    async def config_map(self, namespace: str, name: str) -> Mapping[str, bytes]:
        """The data of a ConfigMap, binaryData included; raises MissingObject."""
        return await self._read(ConfigMap, namespace, name)

    async def secret(self, namespace: str, name: str) -> Mapping[str, bytes]:
        """The data of a Secret, decoded; raises MissingObject."""
        return await self._read(Secret, namespace, name)

    async def _read(self, kind: type[ConfigMap] | type[Secret], namespace: str, name: str) -> Mapping[str, bytes]:
        key = (kind.__name__, namespace, name)
        now = time.monotonic()
        if key in self._cache and now - self._cache[key][0] < self._fresh_s:
            return self._cache[key][1]
        what = f'{kind.__name__.lower()} "{name}"'
        try:
            found = await self._client.get(kind, name, namespace)
        except NotFound:
            raise MissingObject(f"{what} not found") from None
        except ApiError as error:
            raise MissingObject(f"cannot read {what}: {error}") from error
        if isinstance(found, ConfigMap):
            data = {name: text.encode() for name, text in found.data.items()} | found.binary_data
        else:
            data = found.data
        self._cache = {key: entry for key, entry in self._cache.items() if now - entry[0] < self._fresh_s}
        self._cache[key] = (now, data)
        return data


class TokenSource:
    """Service account tokens bound to pods, renewed before they expire."""

    def __init__(self, client: Client, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._tokens: dict[tuple[str, str, int], tuple[float, str]] = {}

    async def token(self, pod: Pod, audience: str, lifetime_s: int) -> str:
        """Return a token of the pod's service account that is still valid for a while. Raises MissingObject."""
        key = (pod.uid, audience, lifetime_s)
        refresh_at, token = self._tokens.get(key, (0.0, ""))
        if not token or self._clock() >= refresh_at:
            refresh_at, token = await self._request(pod, audience, lifetime_s)
            self._tokens[key] = (refresh_at, token)
        return token

    def refresh_in_s(self, pod: Pod) -> float | None:
        """Seconds until a token of the pod must be refreshed; None without tokens."""
        times = [at for (uid, _, _), (at, _) in self._tokens.items() if uid == pod.uid]
        return max(0.0, min(times) - self._clock()) if times else None

    def forget(self, pod: Pod) -> None:
        """Forget the tokens of an ended pod."""
        self._tokens = {key: entry for key, entry in self._tokens.items() if key[0] != pod.uid}

    async def _request(self, pod: Pod, audience: str, lifetime_s: int) -> tuple[float, str]:
        account = pod.spec.service_account_name or "default"
        bound = BoundObjectReference(kind="Pod", api_version="v1", name=pod.name, uid=pod.uid)
        request = TokenRequest(
            spec=TokenRequestSpec(
                audiences=(audience,) if audience else (),
                expiration_seconds=max(lifetime_s, _SHORTEST_TOKEN_S),
                bound_object_ref=bound,
            )
        )
        asked = self._clock()
        try:
            granted = await self._client.create_token(account, request, namespace=pod.namespace)
        except ApiError as error:
            raise MissingObject(f"failed to fetch token: {error}") from error
        return asked + _refresh_after_s(granted), granted.status.token


def _refresh_after_s(granted: TokenRequest) -> float:
    """Four fifths of the token's life, a day at most: the kubelet's own rule (pkg/kubelet/token/token_manager.go)."""
    lifetime_s = float(granted.spec.expiration_seconds or 0)
    if not lifetime_s and granted.status.expiration_timestamp is not None:
        lifetime_s = (granted.status.expiration_timestamp - datetime.datetime.now(datetime.UTC)).total_seconds()
    return min(0.8 * lifetime_s, 86400.0)
