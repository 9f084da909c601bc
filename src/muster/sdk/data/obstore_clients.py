"""Makes obstore's clients for one location, and makes them again when the credentials change.

obstore does not work in a process that was forked after its parent had used it: requests hang. If such a process frees
the parent's clients, the parent's requests hang too, since both share an epoll instance. So a forked process keeps them
for ever, and gets an error that names the fix.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import threading
import time
import urllib.parse
import weakref
from typing import Any, ClassVar

from muster.sdk.data.access import Access
from muster.sdk.data.credentials import Credentials, Folder
from muster.sdk.data.errors import StoreError, WrongStore
from muster.sdk.data.location import Location

WRONG_ENDPOINT = "WrongEndpoint"
LONGEST_TIMEOUT_S = 1024.0
_SHORTEST_TIMEOUT_S = 0.5
_CONNECT_TIMEOUT_S = 10.0
_LOOK_AT_FILES_EVERY_S = 1.0
_IN_MEMORY: dict[str, Any] = {}
_LOCK = threading.Lock()
_ALL: weakref.WeakSet[Clients] = weakref.WeakSet()


class _Runtime:
    """Whether this process, or the parent from which it was forked, has sent requests with obstore."""

    used = False
    used_by_parent = False
    clients_of_parent: ClassVar[list[object]] = []


class Clients:
    """obstore's clients by the timeout of one request, because obstore fixes the timeout when it makes a client."""

    def __init__(
        self, location: Location, access: Access, credentials: Folder | None = None, proxy_url: str = ""
    ) -> None:
        self._location, self._access, self._proxy_url = location, access, proxy_url
        folder = Folder(access.credentials_dir) if access.credentials_dir else None
        self._source = folder if credentials is None else credentials
        self._source_name = access.source if credentials is None else credentials.name
        self._lock = threading.Lock()
        self._clients: dict[tuple[float, int], Any] = {}
        _ALL.add(self)
        self._credentials = Credentials({})
        self._fingerprint: tuple[object, ...] = ()
        self._looked = 0.0
        self.endpoint = _endpoint(location, access)
        if self._source is not None:
            self.reload()

    def get(self, timeout_s: float, retries: int = 0) -> Any:
        """A client whose requests take at most this long; it repeats requests itself only if `retries` is given."""
        if self._location.scheme == "memory":
            return _memory(self._location.bucket)
        if _Runtime.used_by_parent:
            raise StoreError(
                f"{self._location.url}: this process was forked after its parent had used obstore, which then hangs. "
                "Start it with the method 'spawn' or 'forkserver' (DataLoader: multiprocessing_context='spawn')",
                self._location.url,
                reason="Forked",
            )
        self._look_at_files()
        key = (_rounded_down(timeout_s), retries)
        with self._lock:
            client = self._clients.get(key)
            if client is None:
                client = self._clients[key] = self._make(*key)
            return client

    def reload(self) -> bool:
        """Read the credentials again. Returns whether they changed. Without a folder, drop cached tokens."""
        source = self._source
        with self._lock:
            if source is None:
                self._clients = {}
                return False
            try:
                self._fingerprint, found = source.fingerprint(), source.read()
            except OSError as error:
                problem = error.strerror or type(error).__name__
            else:
                changed = not found.same_as(self._credentials)
                if changed:
                    self._credentials, self._clients = found, {}
                return changed
        raise WrongStore(
            f"{self._location.url}: cannot read the credentials in {self._source_name} ({problem}). "
            "Name a Secret that exists, and mount it there",
            self._location.url,
            reason="NoCredentials",
        )

    @property
    def proxied(self) -> bool:
        """Returns whether requests pass through a proxy, whose failures say nothing about the endpoint."""
        return bool(self._proxy_url)

    @property
    def expiration(self) -> str:
        """When the credentials expire, as the Secret says; "" if it does not."""
        return self._credentials.get("AWS_EXPIRATION")

    def close(self) -> None:
        """Drop all clients; obstore closes their connections."""
        with self._lock:
            self._clients = {}

    def _look_at_files(self) -> None:
        source, now = self._source, time.monotonic()
        if source is not None and now - self._looked >= _LOOK_AT_FILES_EVERY_S:
            self._looked = now
            if source.fingerprint() != self._fingerprint:
                with contextlib.suppress(WrongStore):  # the old credentials may still be good
                    self.reload()

    def _make(self, timeout_s: float, retries: int) -> Any:
        import obstore.store

        _Runtime.used = True
        common: dict[str, Any] = {
            "client_options": {
                "timeout": datetime.timedelta(seconds=timeout_s),
                "connect_timeout": datetime.timedelta(seconds=min(timeout_s, _CONNECT_TIMEOUT_S)),
                "allow_http": self.endpoint.startswith("http://"),
            },
            "retry_config": {
                "max_retries": retries,
                "retry_timeout": datetime.timedelta(seconds=timeout_s),
            },
        }
        if self._proxy_url:
            common["client_options"]["proxy_url"] = self._proxy_url
        make = {"s3": self._s3, "gs": self._gcs, "az": self._azure}[self._location.scheme]
        try:
            return make(obstore.store, common)
        except StoreError:
            raise
        except Exception:  # its text may hold what it could not parse
            pass
        url, source = self._location.url, self._source_name or "the environment"
        raise WrongStore(
            f"{url}: the credentials of {source} cannot be parsed. Correct the Secret's values",
            url,
            reason="WrongCredentials",
        )

    def _s3(self, module: Any, common: dict[str, Any]) -> Any:
        config: dict[str, Any] = {"disable_bulk_delete": True, "checksum_algorithm": "sha256"}
        if self.endpoint:
            config["endpoint"] = self.endpoint
        if self._access.region:
            config["region"] = self._access.region
        found = self._credentials
        if _true(found.get("AWS_SKIP_SIGNATURE")):
            config["skip_signature"] = True
        elif self._source is not None:
            common["credential_provider"] = _S3Credentials(
                self._required("AWS_ACCESS_KEY_ID"),
                self._required("AWS_SECRET_ACCESS_KEY"),
                found.get("AWS_SESSION_TOKEN"),
            )
        return module.S3Store(self._location.bucket, config=config, **common)

    def _gcs(self, module: Any, common: dict[str, Any]) -> Any:
        config: dict[str, Any] = {}
        if self.endpoint:
            config["base_url"] = self.endpoint
        if _true(self._credentials.get("GOOGLE_SKIP_SIGNATURE")):
            config["skip_signature"] = True
        elif self._source is not None:
            config["service_account_key"] = self._required("GOOGLE_SERVICE_ACCOUNT_KEY")
        return module.GCSStore(self._location.bucket, config=config, **common)

    def _azure(self, module: Any, common: dict[str, Any]) -> Any:
        config: dict[str, Any] = {}
        found = self._credentials
        account = found.get("AZURE_STORAGE_ACCOUNT_NAME") or _account_of(self.endpoint)
        if account:
            config["account_name"] = account
        if self.endpoint:
            config["endpoint"] = self.endpoint
        if _true(found.get("AZURE_SKIP_SIGNATURE")):
            config["skip_signature"] = True
        elif found.get("AZURE_STORAGE_SAS_TOKEN"):
            common["credential_provider"] = _AzureCredentials("sas_token", found.get("AZURE_STORAGE_SAS_TOKEN"))
        elif self._source is not None:
            key = self._required("AZURE_STORAGE_ACCOUNT_KEY")
            common["credential_provider"] = _AzureCredentials("access_key", key)
        return module.AzureStore(self._location.bucket, config=config, **common)

    def _required(self, name: str) -> str:
        value = self._credentials.get(name)
        if not value:
            url = self._location.url
            raise WrongStore(
                f"{url}: {self._source_name} has no file {name}: add this key to the Secret",
                url,
                reason="WrongCredentials",
            )
        return value


def _keep_clients_of_parent() -> None:
    """Runs in a forked process."""
    _Runtime.used_by_parent = _Runtime.used_by_parent or _Runtime.used
    _Runtime.clients_of_parent.extend(clients._clients for clients in _ALL)


os.register_at_fork(after_in_child=_keep_clients_of_parent)


class _S3Credentials:
    """Passed to obstore, so that variables of the environment are not mixed with the Secret's values."""

    def __init__(self, key_id: str, secret: str, token: str) -> None:
        self._found = {
            "access_key_id": key_id,
            "secret_access_key": secret,
            "token": token or None,
            "expires_at": None,  # `Clients` makes new clients when the files change
        }

    def __call__(self) -> dict[str, Any]:
        return self._found


class _AzureCredentials:
    """Passed to obstore, for the same reason."""

    def __init__(self, name: str, value: str) -> None:
        self._found = {name: value, "expires_at": None}

    def __call__(self) -> dict[str, Any]:
        return self._found


def _memory(name: str) -> Any:
    with _LOCK:
        if name not in _IN_MEMORY:
            import obstore.store

            _IN_MEMORY[name] = obstore.store.MemoryStore()
        return _IN_MEMORY[name]


def _rounded_down(timeout_s: float) -> float:
    """A power of two, so that few clients are made."""
    rounded = LONGEST_TIMEOUT_S
    while rounded > timeout_s and rounded > _SHORTEST_TIMEOUT_S:
        rounded /= 2
    return rounded


def _endpoint(location: Location, access: Access) -> str:
    """The endpoint's URL. Raises WrongStore if it cannot be one."""
    endpoint = (access.endpoint or endpoint_of_environment(location.scheme)).rstrip("/")
    if not endpoint:
        return ""
    parts = urllib.parse.urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise WrongStore(
            f"{location.url}: the endpoint must be a URL such as https://HOST:PORT", location.url, reason=WRONG_ENDPOINT
        )
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise WrongStore(
            f"{location.url}: the endpoint must have no user and no query", location.url, reason=WRONG_ENDPOINT
        )
    return endpoint


def endpoint_of_environment(scheme: str) -> str:
    """The endpoint that obstore would find by itself, since http:// must be allowed explicitly."""
    names = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT") if scheme == "s3" else ()
    return next((os.environ[name] for name in names if os.environ.get(name)), "")


def _account_of(endpoint: str) -> str:
    """The account in https://ACCOUNT.blob.core.windows.net; "" for other endpoints."""
    host = urllib.parse.urlsplit(endpoint).hostname or ""
    account, dot, rest = host.partition(".")
    return account if dot and rest.startswith("blob.") else ""


def _true(text: str) -> bool:
    return text.lower() in ("true", "1", "yes")
