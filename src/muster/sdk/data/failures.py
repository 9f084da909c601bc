"""What the exceptions of obstore mean.

They have no fields. Their text holds the HTTP status and the store's own error code (the element `Code` of the answer),
which are stable, but also URLs and headers. So both are picked out here, and the text goes no further. Only where they
explain nothing is the text kept, without all that may be secret.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from muster.sdk.data.redaction import redacted

_STATUS = re.compile(r"status code: (\d{3})|\bstatus: (\d{3})\b")
_CODE = re.compile(r"<Code>([A-Za-z0-9_.-]{1,60})</Code>")
_REQUEST_ID = re.compile(r"<RequestId>([A-Za-z0-9_.:-]{1,80})</RequestId>")
_CONNECTION = re.compile(r"kind: (Connect|Request|Timeout|Interrupted|Decode|Unknown)\b")
_METADATA_SERVICES = (
    "169.254.169.254",
    "169.254.170.2",
    "/latest/api/token",
    "/computeMetadata/",
    "/metadata/identity/",
)
_WITH_PAUSE = (408, 429, 500, 502, 503, 504)
_THROTTLED_CODES = ("SlowDown", "ServerBusy", "RequestLimitExceeded", "ThrottlingException", "TooManyRequests")

MISSING = "missing"
EXISTS = "exists"
CHANGED = "changed"
FORBIDDEN = "forbidden"
BAD_CREDENTIALS = "credentials"  # expired or unknown: others may come
NO_CREDENTIALS = "none"
WRONG_BUCKET = "bucket"
WRONG_REGION = "region"
CLOCK = "clock"
PAST_END = "range"
NO_RANGES = "ranges"
BAD_KEY = "key"
TEMPORARY = "temporary"
THROTTLED = "throttled"
OTHER = "other"

REFUSED = "refused"
NAME = "name"
TLS = "tls"

REASONS = {  # of WrongStore
    BAD_CREDENTIALS: "WrongCredentials",
    NO_CREDENTIALS: "NoCredentials",
    WRONG_BUCKET: "WrongBucket",
    WRONG_REGION: "WrongRegion",
    CLOCK: "ClockSkew",
    NO_RANGES: "NoRanges",
    BAD_KEY: "WrongKey",
}

_KINDS_OF_CODES = {
    "NoSuchBucket": WRONG_BUCKET,
    "InvalidBucketName": WRONG_BUCKET,
    "ContainerNotFound": WRONG_BUCKET,
    "InvalidResourceName": WRONG_BUCKET,
    "PermanentRedirect": WRONG_REGION,
    "TemporaryRedirect": WRONG_REGION,
    "AuthorizationHeaderMalformed": WRONG_REGION,
    "IllegalLocationConstraintException": WRONG_REGION,
    "RequestTimeTooSkewed": CLOCK,
    "RequestExpired": CLOCK,
    "ExpiredToken": BAD_CREDENTIALS,
    "ExpiredTokenException": BAD_CREDENTIALS,
    "TokenRefreshRequired": BAD_CREDENTIALS,
    "InvalidToken": BAD_CREDENTIALS,
    "InvalidAccessKeyId": BAD_CREDENTIALS,
    "InvalidClientTokenId": BAD_CREDENTIALS,
    "SignatureDoesNotMatch": BAD_CREDENTIALS,
    "InvalidSecurity": BAD_CREDENTIALS,
    "AuthenticationFailed": BAD_CREDENTIALS,
    "InvalidAuthenticationInfo": BAD_CREDENTIALS,
    "ConditionalRequestConflict": TEMPORARY,  # S3: two conditional writes at once; repeat
    "OperationAborted": TEMPORARY,
    "RequestTimeout": TEMPORARY,
    "InternalError": TEMPORARY,
    "NoSuchUpload": TEMPORARY,
    "InvalidRange": PAST_END,
    "BlobAlreadyExists": EXISTS,
}


class Failure(NamedTuple):
    """Why an attempt failed.

    Attributes:
        kind: one of the constants of this module.
        status: HTTP status; 0 if the store did not answer.
        code: the store's own error code; "" without one.
        connection: how the connection failed ("Connect", "Timeout", ...); "" if the store answered.
        request_id: for questions to the operators of the store.
        cause: why there is no connection: REFUSED, NAME or TLS; "" if the cause is another or not known.
        text: what obstore said, without URLs and credentials; only of kind OTHER without a code.
    """

    kind: str
    status: int = 0
    code: str = ""
    connection: str = ""
    request_id: str = ""
    cause: str = ""
    text: str = ""

    @property
    def is_answer(self) -> bool:
        """Returns whether the store itself sent this failure."""
        return not self.connection and self.kind not in (NO_CREDENTIALS, BAD_KEY, OTHER)

    def __str__(self) -> str:
        if self.cause:
            return _CAUSES[self.cause]
        if self.connection:
            return _CONNECTIONS[self.connection]
        parts = [str(self.status) if self.status else "", self.code]
        parts.append(f"(request {self.request_id})" if self.request_id else "")
        known = " ".join(part for part in parts if part) or "an answer that is not understood"
        return f"{known}: {self.text}" if self.text else known


INTERRUPTED = Failure(TEMPORARY, connection="Interrupted")  # an answer that ended early without an error
LATE = Failure(TEMPORARY, connection="Late")

_CONNECTIONS = {
    "Connect": "no connection",
    "Request": "the request could not be sent",
    "Timeout": "the answer took too long",
    "Interrupted": "the connection broke",
    "Decode": "the answer was broken",
    "Unknown": "the connection failed",
    "Late": "the time was over before all was sent",
}
_CAUSES = {
    REFUSED: "connection refused",
    NAME: "the host's name does not resolve",
    TLS: "TLS failed: the port does not speak TLS, or its certificate is not trusted",
}
_SIGNS_OF_CAUSES = (  # in the text of hyper and rustls
    (REFUSED, re.compile(r"kind: ConnectionRefused\b")),
    (NAME, re.compile(r'"dns error"(?![\s\S]*(Temporary failure|Try again))')),  # those are an outage of DNS
    (TLS, re.compile(r"\b(InvalidMessage|InvalidCertificate|AlertReceived|PeerIncompatible|PeerMisbehaved)\b")),
)


def failure_of(error: BaseException) -> Failure:
    """Classify an exception that obstore raised, or passed on: TimeoutError is ours, from an upload beyond its end."""
    if isinstance(error, TimeoutError):
        return LATE
    text = str(error)
    name = type(error).__name__
    status_match, code_match, id_match = _STATUS.search(text), _CODE.search(text), _REQUEST_ID.search(text)
    status = int(status_match[1] or status_match[2]) if status_match else 0
    code = code_match[1] if code_match else ""
    connection_match = _CONNECTION.search(text) if not status else None
    connection = connection_match[1] if connection_match else ""
    kind = _kind(name, text, status, code, connection)
    request_id = id_match[1] if id_match else ""
    cause = _cause(text) if connection == "Connect" else ""
    shown = redacted(f"{name}: {text}") if kind == OTHER and not code else ""
    return Failure(kind, status, code, connection, request_id, cause, shown)


def _cause(text: str) -> str:
    return next((cause for cause, sign in _SIGNS_OF_CAUSES if sign.search(text)), "")


def _kind(name: str, text: str, status: int, code: str, connection: str) -> str:
    if any(service in text for service in _METADATA_SERVICES):
        return NO_CREDENTIALS
    if code in _THROTTLED_CODES or status in (429, 503):
        return THROTTLED
    if code in _KINDS_OF_CODES:
        return _KINDS_OF_CODES[code]
    if status in _WITH_PAUSE or connection:
        return TEMPORARY
    return _kind_without_code(name, text, status)


def _kind_without_code(name: str, text: str, status: int) -> str:
    if status == 416 or "StartTooLarge" in text:
        return PAST_END
    if "BareRedirect" in text or status in (301, 307, 308):
        return WRONG_REGION
    if "NotPartial" in text or "UnexpectedRange" in text:
        return NO_RANGES
    if name == "ValueError" or "Path" in name:
        return BAD_KEY
    return _KINDS_OF_EXCEPTIONS.get(name, _KINDS_OF_STATUS.get(status, OTHER))


_KINDS_OF_STATUS = {401: BAD_CREDENTIALS, 403: FORBIDDEN, 404: MISSING, 409: EXISTS, 412: CHANGED}  # lists have no type
_KINDS_OF_EXCEPTIONS = {
    "FileNotFoundError": MISSING,
    "NotFoundError": MISSING,
    "AlreadyExistsError": EXISTS,
    "PreconditionError": CHANGED,
    "PermissionDeniedError": FORBIDDEN,
    "UnauthenticatedError": BAD_CREDENTIALS,
}
