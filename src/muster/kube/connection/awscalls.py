"""Calls to services of AWS, through boto3.

boto3 blocks, so each call runs in a separate thread with a deadline; botocore's timeouts end the thread. Credentials
are found as boto3 finds them: environment, web identity of the service account, instance profile. Calls are not
retried: the callers pace their requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from functools import partial
from typing import Any, Final

TIMEOUT_S: Final = 20.0
"""For one call, including redirects and sign-in."""
READ_S: Final = 10.0
_CONNECT_S: Final = 5.0
_THREADS: Final = 8


class AwsFailure(StrEnum):
    """The kind of a failure that is the same for all services."""

    THROTTLED = "Throttled"
    DENIED = "Denied"
    MISCONFIGURED = "Misconfigured"
    TIMED_OUT = "TimedOut"
    UNAVAILABLE = "Unavailable"
    REFUSED = "Refused"
    """The service refused the request, for a reason of its own: `code`."""


_FAILURES: Final[Mapping[str, AwsFailure]] = {
    **dict.fromkeys(("Throttling", "ThrottlingException", "RequestLimitExceeded"), AwsFailure.THROTTLED),
    **dict.fromkeys(("TooManyRequestsException", "SlowDown"), AwsFailure.THROTTLED),
    **dict.fromkeys(("AccessDenied", "AccessDeniedException", "UnauthorizedOperation"), AwsFailure.DENIED),
    **dict.fromkeys(("AuthFailure", "ExpiredToken", "InvalidClientTokenId"), AwsFailure.DENIED),
    **dict.fromkeys(("SignatureDoesNotMatch", "UnrecognizedClientException", "OptInRequired"), AwsFailure.DENIED),
}


class AwsError(Exception):
    """A call failed.

    Attributes:
        failure: the kind.
        code: the service's code; empty if the service did not answer.
        message: the operation and the service's message, for people.
    """

    def __init__(self, failure: AwsFailure, message: str, code: str = "") -> None:
        super().__init__(message)
        self.failure = failure
        self.code = code
        self.message = message


class AwsCalls:
    """Calls to one service.

    Args:
        service: its name in boto3.
        timeout_s: the limit of one call.
        read_s: the limit of one answer of the service.
    """

    def __init__(self, service: str, *, timeout_s: float = TIMEOUT_S, read_s: float = READ_S) -> None:
        self._service = service
        self._timeout_s = timeout_s
        self._read_s = read_s
        self._clients: dict[str, Any] = {}
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="aws")

    async def call(self, region: str, operation: str, **arguments: Any) -> Any:
        """Return the answer of an operation. An empty region is the environment's. Raises AwsError."""
        work = partial(self._in_thread, region, operation, arguments)
        try:
            async with asyncio.timeout(self._timeout_s):
                return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        except TimeoutError:
            message = f"{operation}: no answer in {self._timeout_s:g} s"
            raise AwsError(AwsFailure.TIMED_OUT, message) from None

    def close(self) -> None:
        """Release the threads. Those that still wait for an answer end by themselves."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _in_thread(self, region: str, operation: str, arguments: Mapping[str, Any]) -> Any:
        boto3, botocore = _libraries()
        errors = botocore.exceptions
        try:
            if region not in self._clients:
                self._clients[region] = self._connect(boto3, botocore, region)
            return getattr(self._clients[region], operation)(**arguments)
        except errors.ClientError as error:
            said = error.response.get("Error", {})
            code, message = said.get("Code", ""), said.get("Message", "")
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            failure = _FAILURES.get(code, AwsFailure.UNAVAILABLE if status >= 500 else AwsFailure.REFUSED)
            raise AwsError(failure, f"{operation}: {code}: {message}", code) from None
        except (errors.NoCredentialsError, errors.PartialCredentialsError, errors.CredentialRetrievalError) as error:
            raise AwsError(AwsFailure.DENIED, f"{operation}: {error}") from None
        except (errors.NoRegionError, errors.InvalidRegionError, errors.ParamValidationError) as error:
            raise AwsError(AwsFailure.MISCONFIGURED, f"{operation}: {error}") from None
        except (errors.ConnectTimeoutError, errors.ReadTimeoutError) as error:
            raise AwsError(AwsFailure.TIMED_OUT, f"{operation}: {error}") from None
        except (errors.BotoCoreError, botocore.parsers.ResponseParserError) as error:
            raise AwsError(AwsFailure.UNAVAILABLE, f"{operation}: {error}") from None

    def _connect(self, boto3: Any, botocore: Any, region: str) -> Any:
        config = botocore.config.Config(
            connect_timeout=_CONNECT_S, read_timeout=self._read_s, retries={"total_max_attempts": 1}
        )
        # A separate session: creating clients from boto3's default one is not thread-safe.
        return boto3.session.Session().client(self._service, region_name=region or None, config=config)


def _libraries() -> tuple[Any, Any]:
    try:
        import boto3
        import botocore.config
        import botocore.exceptions
        import botocore.parsers
    except ImportError:
        message = "provider aws needs boto3, which is not installed here: pip install 'muster[aws]'"
        raise AwsError(AwsFailure.MISCONFIGURED, message) from None
    return boto3, botocore
