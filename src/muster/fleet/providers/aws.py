"""AWS Auto Scaling groups, through boto3.

boto3 blocks, so each call runs in a separate thread with a deadline; botocore's timeouts end the thread.

Every instance must be protected from scale-in (Auto Scaling: "Use instance scale-in protection"). Otherwise the group
itself chooses which instance to delete when its size is lowered or its zones are balanced. Scaling deletes by ID.

A new size is accepted even without capacity: launches fail later, and only the group's activities show it
(kubernetes/autoscaler#3241, #4489).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import partial
from typing import Any

from muster.fleet.providers.base import ProviderError
from muster.fleet.scaling.snapshot import Failure, Fault, Group, Instance, PoolSpec

TIMEOUT_S = 20.0
"""For one call, including redirects and sign-in."""
_CONNECT_S = 5.0
_READ_S = 10.0
_THREADS = 8
_ACTIVITIES = 20
_ENDING = ("Terminating", "Terminated", "Detaching", "Detached")
_APART = ("Warmed", "Standby")  # neither counts in the desired capacity
_FAILED = ("Failed", "Cancelled")

# Amazon EC2 API Reference, "Error codes", as Auto Scaling repeats them in an activity's message.
_NO_CAPACITY = (
    "InsufficientInstanceCapacity",
    "InsufficientCapacity",
    "InsufficientReservedInstanceCapacity",
    "UnfulfillableCapacity",
    "do not have sufficient",
    "SpotMaxPriceTooLow",
    "no Spot capacity available",
    "is not supported in your requested Availability Zone",
)
_QUOTA = (
    "VcpuLimitExceeded",
    "InstanceLimitExceeded",
    "MaxSpotInstanceCountExceeded",
    "current instance limit",
    "more vCPU capacity",
)

_FAULTS: Mapping[str, Fault] = {
    **dict.fromkeys(("Throttling", "ThrottlingException", "RequestLimitExceeded"), Fault.THROTTLED),
    **dict.fromkeys(("TooManyRequestsException", "SlowDown"), Fault.THROTTLED),
    **dict.fromkeys(("AccessDenied", "AccessDeniedException", "UnauthorizedOperation", "AuthFailure"), Fault.DENIED),
    **dict.fromkeys(("ExpiredToken", "InvalidClientTokenId", "SignatureDoesNotMatch"), Fault.DENIED),
    **dict.fromkeys(("UnrecognizedClientException", "OptInRequired"), Fault.DENIED),
    **dict.fromkeys(("ValidationError", "InvalidParameterValue"), Fault.MISCONFIGURED),
    "LimitExceeded": Fault.QUOTA,
}
_GONE = ("not found", "No managed instance found")


class AutoScalingGroups:
    """Pools that are Auto Scaling groups. `group` is the name; option `region` overrides the environment's.

    Credentials are found as boto3 finds them: environment, web identity of the service account, instance profile.

    Args:
        timeout_s: the limit of one call.
        read_s: the limit of one answer of the service.
    """

    def __init__(self, *, timeout_s: float = TIMEOUT_S, read_s: float = _READ_S) -> None:
        self._timeout_s = timeout_s
        self._read_s = read_s
        self._clients: dict[str, Any] = {}
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="aws")

    async def look(self, pool: PoolSpec) -> Group:
        """Return the group. Its activities are read only if instances are missing."""
        answer = await self._call(pool, "describe_auto_scaling_groups", AutoScalingGroupNames=[pool.group])
        found = answer["AutoScalingGroups"]
        if not found:
            raise ProviderError(Fault.MISCONFIGURED, f"there is no Auto Scaling group {pool.group}")
        group = found[0]
        if not group.get("NewInstancesProtectedFromScaleIn"):
            message = f"new instances of {pool.group} are not protected from scale-in: set that on the group"
            raise ProviderError(Fault.MISCONFIGURED, message)
        instances = tuple(
            Instance(each["InstanceId"], terminating=each["LifecycleState"].startswith(_ENDING))
            for each in group["Instances"]
            if not each["LifecycleState"].startswith(_APART)
        )
        size = group["DesiredCapacity"]
        short = sum(not each.terminating for each in instances) < size
        return Group(
            size,
            instances,
            floor=group["MinSize"],
            ceiling=group["MaxSize"],
            failure=await self._failure(pool) if short else None,
        )

    async def set_size(self, pool: PoolSpec, size: int) -> None:
        """Set the desired capacity."""
        await self._call(
            pool, "set_desired_capacity", AutoScalingGroupName=pool.group, DesiredCapacity=size, HonorCooldown=False
        )

    async def delete(self, pool: PoolSpec, instance: str, *, replace: bool) -> None:
        """Terminate the instance."""
        try:
            await self._call(
                pool,
                "terminate_instance_in_auto_scaling_group",
                InstanceId=instance,
                ShouldDecrementDesiredCapacity=not replace,
            )
        except ProviderError as error:
            if not any(words in error.message for words in _GONE):
                raise

    async def close(self) -> None:
        """Release the threads. Those that still wait for an answer end by themselves."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _failure(self, pool: PoolSpec) -> Failure | None:
        """Return the newest launch if it failed; failures before the last success do not count."""
        answer = await self._call(
            pool, "describe_scaling_activities", AutoScalingGroupName=pool.group, MaxRecords=_ACTIVITIES
        )
        launches = [each for each in answer["Activities"] if each.get("Description", "").startswith("Launching")]
        ended = [each for each in launches if each["StatusCode"] in (*_FAILED, "Successful")]
        newest = max(ended, key=lambda each: _seconds(each["StartTime"]), default=None)
        if newest is None or newest["StatusCode"] not in _FAILED:
            return None
        message = newest.get("StatusMessage") or newest.get("Cause", "")
        return Failure(_launch_fault(message), message, _seconds(newest["StartTime"]))

    async def _call(self, pool: PoolSpec, operation: str, **arguments: Any) -> Any:
        work = partial(self._in_thread, pool.options.get("region", ""), operation, arguments)
        try:
            async with asyncio.timeout(self._timeout_s):
                return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        except TimeoutError:
            raise ProviderError(Fault.TIMED_OUT, f"{operation}: no answer in {self._timeout_s:g} s") from None

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
            raise ProviderError(_FAULTS.get(code, Fault.UNAVAILABLE), f"{operation}: {code}: {message}") from None
        except (errors.NoCredentialsError, errors.PartialCredentialsError, errors.CredentialRetrievalError) as error:
            raise ProviderError(Fault.DENIED, f"{operation}: {error}") from None
        except (errors.NoRegionError, errors.InvalidRegionError, errors.ParamValidationError) as error:
            raise ProviderError(Fault.MISCONFIGURED, f"{operation}: {error}") from None
        except (errors.ConnectTimeoutError, errors.ReadTimeoutError) as error:
            raise ProviderError(Fault.TIMED_OUT, f"{operation}: {error}") from None
        except (errors.BotoCoreError, botocore.parsers.ResponseParserError) as error:
            raise ProviderError(Fault.UNAVAILABLE, f"{operation}: {error}") from None

    def _connect(self, boto3: Any, botocore: Any, region: str) -> Any:
        config = botocore.config.Config(
            connect_timeout=_CONNECT_S, read_timeout=self._read_s, retries={"total_max_attempts": 1}
        )
        # A separate session: creating clients from boto3's default one is not thread-safe.
        return boto3.session.Session().client("autoscaling", region_name=region or None, config=config)


def _libraries() -> tuple[Any, Any]:
    try:
        import boto3
        import botocore.config
        import botocore.exceptions
        import botocore.parsers
    except ImportError:
        message = "provider aws needs boto3, which is not installed here: pip install 'muster[aws]'"
        raise ProviderError(Fault.MISCONFIGURED, message) from None
    return boto3, botocore


def _launch_fault(message: str) -> Fault:
    if any(words in message for words in _NO_CAPACITY):
        return Fault.NO_CAPACITY
    return Fault.QUOTA if any(words in message for words in _QUOTA) else Fault.MISCONFIGURED


def _seconds(moment: datetime | float) -> float:
    return moment.timestamp() if isinstance(moment, datetime) else moment
