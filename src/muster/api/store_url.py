"""Rules of the URLs of object stores in a TrainingJob: no credentials in them, and a bucket that the SDK can open.

A spec is visible to every user who may read the job, so a URL with a password or a signature is refused. The same
regular expressions are in CEL rules (RE2 syntax), so that both API servers and the CLI agree.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import PurePosixPath
from typing import Final
from urllib.parse import quote, unquote, urlsplit

SCHEMES: Final = ("s3", "gs", "az")
"""Object stores that the SDK opens. A program may use another scheme for its checkpoints; Muster passes it on."""
FILE: Final = "file://"
STORE_URL: Final = "^(s3|gs|az)://[A-Za-z0-9][-A-Za-z0-9._]*(/[^?#[:cntrl:]]*)?$"
FILE_URL: Final = "^file:///[^?#[:cntrl:]]+$"
SECRET_IN_URL: Final = (
    "(?i)(://[^/?#]*:[^/?#]*@|^(s3|gs|az)://[^/?#]*@|[?&](sig|signature|x-amz-signature|x-amz-credential|"
    "x-amz-security-token|x-goog-signature|x-goog-credential|awsaccesskeyid|googleaccessid|access_?key(_?id)?|"
    "secret(_?access)?_?key|aws_[a-z_]+|account_?key|sas(_?token)?|(session_?)?token|password|secret)=)"
)
"""A password before the host, or a parameter that holds a key or a signature. Sources: AWS Signature Version 4 query
parameters, Google Cloud Storage signed URLs, Azure shared access signatures."""
ENDPOINT: Final = "^https?://[^/?#@[:cntrl:] ]+(/[^?#@[:cntrl:] ]*)?$"
NO_SECRET: Final = (
    "has credentials in it, and a job's spec is visible to others; put them into a Secret and name it in "
    "credentials.secretName"
)
CREDENTIAL_KEYS: Final[Mapping[str, tuple[tuple[str, ...], ...]]] = {
    "s3": (("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), ("AWS_SKIP_SIGNATURE",)),
    "gs": (("GOOGLE_SERVICE_ACCOUNT_KEY",), ("GOOGLE_SKIP_SIGNATURE",)),
    "az": (
        ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY"),
        ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_SAS_TOKEN"),
        ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_SKIP_SIGNATURE"),
    ),
}
"""The keys that a Secret must have for each kind of store: one of these sets. Public stores need no signature."""
_NO_FOLDER: Final = "{!r} does not name a folder of a node; write file:///FOLDER"


def _compiled(pattern: str) -> re.Pattern[str]:
    """Compile an RE2 pattern: Python has no POSIX classes."""
    return re.compile(pattern.replace("[:cntrl:]", r"\x00-\x1f\x7f"))


_STORE, _FILE, _SECRET, _ENDPOINT = (_compiled(each) for each in (STORE_URL, FILE_URL, SECRET_IN_URL, ENDPOINT))


def is_url(text: str) -> bool:
    """Returns whether the text is a URL and not a folder."""
    return "://" in text


def is_remote(text: str) -> bool:
    """Returns whether the text is a URL and not that of a folder of a node."""
    return is_url(text) and not text.startswith(FILE)


def is_store(url: str) -> bool:
    """Returns whether the SDK opens this URL as an object store. With a query, only the program understands it."""
    return _STORE.fullmatch(url) is not None


def has_secret(url: str) -> bool:
    """Returns whether a URL contains a password, a key or a signature."""
    return is_url(url) and _SECRET.search(url) is not None


def data_problem(url: str) -> str:
    """Returns what is wrong with the URL of training data; "" if it can be used."""
    if has_secret(url):
        return NO_SECRET
    if _STORE.fullmatch(url) or _FILE.fullmatch(url):
        return ""
    if not is_url(url):
        return f"{url!r} is not a URL; write s3://BUCKET/PATH, gs://BUCKET/PATH, az://CONTAINER/PATH or file:///FOLDER"
    if url.startswith(FILE):
        return _NO_FOLDER.format(url)
    return _store_problem(url) or f"the scheme of {url!r} is not supported; use s3, gs, az or file"


def checkpoint_problem(path: str) -> str:
    """Returns what is wrong with a folder or URL for checkpoints; "" if it can be used.

    Any scheme and any harmless query are accepted: the program may read and write the URL by itself.
    """
    if has_secret(path):
        return NO_SECRET
    if path.startswith(FILE):
        return "" if _FILE.fullmatch(path) else _NO_FOLDER.format(path)
    return _store_problem(path.partition("?")[0].partition("#")[0])


def endpoint_problem(endpoint: str) -> str:
    """Returns what is wrong with an endpoint; "" if it can be used."""
    if not endpoint or _ENDPOINT.fullmatch(endpoint):
        return ""
    if "@" in endpoint or has_secret(endpoint):
        return NO_SECRET
    return f"{endpoint!r} is not the URL of a service; write http://HOST:PORT or https://HOST, without a query"


def _store_problem(url: str) -> str:
    scheme, found, rest = url.partition("://")
    if not found or scheme not in SCHEMES or _STORE.fullmatch(url):
        return ""
    if not rest.strip("/") or rest.startswith("/"):
        return f"{url!r} names no bucket; write {scheme}://BUCKET/PATH"
    if "?" in rest or "#" in rest:
        return f"{url!r} has a query or a fragment; an endpoint and a region have fields of their own"
    return f"{url!r} is not the URL of a bucket; write {scheme}://BUCKET/PATH"


def local_folder(path: str) -> str:
    """Returns the folder of a `file://` URL; any other text is returned unchanged."""
    return unquote(urlsplit(path).path) if path.startswith(FILE) else path


def file_url(folder: str) -> str:
    """Returns the `file://` URL of an absolute folder."""
    return FILE + quote(str(PurePosixPath(folder)))


def missing_keys(url: str, keys: Collection[str]) -> str:
    """Returns which keys a Secret lacks for this store, as text; "" if it is complete or the scheme is unknown."""
    choices = CREDENTIAL_KEYS.get(url.partition("://")[0], ())
    if not choices or any(set(choice) <= set(keys) for choice in choices):
        return ""
    return ", or ".join(" and ".join(choice) for choice in choices)
