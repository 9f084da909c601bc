"""The interface between scaling and the providers of nodes.

A provider knows pools, but not gangs or pods. It decides nothing, and remembers nothing that the cloud does not hold.
Every call may come from a new leader, twice, or after a call whose answer was lost.

    look      the pool's current state from the cloud itself: requested size, instances, newest failed launch
    set_size  keep this many instances: an absolute number, so repeating it after a lost answer changes nothing
    delete    delete exactly this instance, and lower the size unless it is to be replaced

Rules for all providers:

- Scaling never calls `set_size` with less than the number of instances. If a cloud shrinks pools by itself (rebalances
  zones, replaces unhealthy machines), this must be disabled, or a gang may lose a node. A provider that sees it enabled
  raises MISCONFIGURED.
- An `Instance.id` is its node's name, the node's `spec.providerID`, or the end of that after a slash.
- Every call ends within its deadline, with ProviderError if the cloud does not answer. A provider does not retry:
  scaling pauses requests to the pool instead, longer each time, and its condition has the reason.
- After NO_CAPACITY and QUOTA, scaling tries the next pool at once.

Requirements for a provider for Azure VM scale sets, which does not exist yet:

- Size is `sku.capacity`. PATCH it and do not wait for the long-running operation (Azure-AsyncOperation): `look` shows
  the progress. `overprovision` must be false, or more machines join than were requested and some of them vanish.
- Instances are the scale set's VMs with instanceView. IDs of flexible sets are VM names. In uniform sets an ID is a
  number that other sets have too: `Instance.id` is the end of the providerID from `virtualMachineScaleSets/` on.
- `delete` is deleteInstances, which lowers the capacity as well. To replace an instance, raise the capacity again in a
  second call. If the first answer was lost, `look` and a new leader complete that.
- Failed launches are in the operation's error and in provisioningState Failed. AllocationFailed,
  ZonalAllocationFailed, OverconstrainedAllocationRequest and SkuNotAvailable mean NO_CAPACITY; OperationNotAllowed
  with a quota is QUOTA.
- 429 with Retry-After is THROTTLED: the limits are per subscription and scale set, and every retry uses them up.
- Protection from scale-in for every instance (protectFromScaleIn), no autoscale rules of its own, and
  `singlePlacementGroup: false` above 100 instances.
"""

from __future__ import annotations

from typing import Protocol

from muster.fleet.scaling.snapshot import Fault, Group, PoolSpec


class ProviderError(Exception):
    """A request failed. It may still have taken effect, which `look` shows.

    Args:
        fault: the kind of failure.
        message: the provider's message, for people.
        wait_s: how long the provider asked us to wait; 0 if it did not.
    """

    def __init__(self, fault: Fault, message: str, wait_s: float = 0.0) -> None:
        super().__init__(message)
        self.fault = fault
        self.message = message
        self.wait_s = wait_s


class Provider(Protocol):
    """Creates and deletes nodes. Methods raise ProviderError."""

    async def look(self, pool: PoolSpec) -> Group:
        """Return the current state of the pool."""

    async def set_size(self, pool: PoolSpec, size: int) -> None:
        """Set the number of instances to keep."""

    async def delete(self, pool: PoolSpec, instance: str, *, replace: bool) -> None:
        """Delete the instance. It is not an error if it does not exist."""

    async def close(self) -> None:
        """Release connections and threads."""
