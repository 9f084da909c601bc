"""AWS Auto Scaling groups, through boto3.

Every instance must be protected from scale-in (Auto Scaling: "Use instance scale-in protection"). Otherwise the group
itself chooses which instance to delete when its size is lowered or its zones are balanced. Scaling deletes by ID.

A new size is accepted even without capacity: launches fail later, and only the group's activities show it
(kubernetes/autoscaler#3241, #4489).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from muster.fleet.providers.base import ProviderError
from muster.fleet.scaling.snapshot import Failure, Fault, Group, Instance, PoolSpec
from muster.kube.connection.awscalls import READ_S, TIMEOUT_S, AwsCalls, AwsError, AwsFailure

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

_FAULTS: Mapping[AwsFailure, Fault] = {
    AwsFailure.THROTTLED: Fault.THROTTLED,
    AwsFailure.DENIED: Fault.DENIED,
    AwsFailure.MISCONFIGURED: Fault.MISCONFIGURED,
    AwsFailure.TIMED_OUT: Fault.TIMED_OUT,
}
_REFUSALS: Mapping[str, Fault] = {
    **dict.fromkeys(("ValidationError", "InvalidParameterValue"), Fault.MISCONFIGURED),
    "LimitExceeded": Fault.QUOTA,
}
_GONE = ("not found", "No managed instance found")


class AutoScalingGroups:
    """Pools that are Auto Scaling groups. `group` is the name; option `region` overrides the environment's.

    Args:
        timeout_s: the limit of one call.
        read_s: the limit of one answer of the service.
    """

    def __init__(self, *, timeout_s: float = TIMEOUT_S, read_s: float = READ_S) -> None:
        self._calls = AwsCalls("autoscaling", timeout_s=timeout_s, read_s=read_s)

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
        self._calls.close()

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
        try:
            return await self._calls.call(pool.options.get("region", ""), operation, **arguments)
        except AwsError as error:
            fault = _FAULTS.get(error.failure) or _REFUSALS.get(error.code, Fault.UNAVAILABLE)
            raise ProviderError(fault, error.message) from None


def _launch_fault(message: str) -> Fault:
    if any(words in message for words in _NO_CAPACITY):
        return Fault.NO_CAPACITY
    return Fault.QUOTA if any(words in message for words in _QUOTA) else Fault.MISCONFIGURED


def _seconds(moment: datetime | float) -> float:
    return moment.timestamp() if isinstance(moment, datetime) else moment
