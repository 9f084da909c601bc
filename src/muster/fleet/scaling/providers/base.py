"""What scaling asks of whoever provides nodes, and how a provider says that it cannot.

A provider sees pools only. It knows no gangs and no pods, decides nothing and remembers nothing that the cloud does
not: every call may come from a new leader, twice, or after one whose answer was lost.

    look      what the pool is now, from the cloud itself: size asked for, instances, the newest failed launch
    set_size  keep so many instances: an absolute number, so that asking again after a lost answer changes nothing
    delete    delete this instance and no other, and one of the size unless it is to be replaced

Rules for all of them:

- `set_size` below the number of instances is never asked for. A cloud that shrinks a pool by itself (rebalancing over
  zones, replacing what it takes for unhealthy) must be told not to, or it takes a gang's node: a provider says
  MISCONFIGURED where it sees that nobody has.
- An `Instance.id` is its node's name, the node's `spec.providerID`, or the end of that behind a slash.
- Every call ends within its deadline, with ProviderError where the cloud does not answer. Nothing is retried inside:
  the pool is left alone for a while instead, longer each time, and its condition says why.
- What the cloud says about room decides whether the next pool is tried: NO_CAPACITY and QUOTA do that, at once.

What a provider for Azure VM scale sets needs (there is none yet):

- Size is `sku.capacity`. PATCH it and do not wait for the long-running operation (Azure-AsyncOperation): `look` shows
  how far it is. `overprovision` must be false, or more machines join than were asked for and some of them vanish.
- Instances are the scale set's VMs with instanceView; ids of flexible sets are VM names. In uniform ones an id is a
  number that other sets have too: `Instance.id` is the end of the providerID from `virtualMachineScaleSets/` on.
- `delete` is deleteInstances, which lowers the capacity as well; to replace one, raise the capacity again in a second
  call, which `look` and a new leader finish where the first answer was lost.
- Failed launches are in the operation's error and in provisioningState Failed: AllocationFailed,
  ZonalAllocationFailed, OverconstrainedAllocationRequest and SkuNotAvailable are NO_CAPACITY, OperationNotAllowed
  with a quota is QUOTA.
- 429 with Retry-After is THROTTLED: the limits are per subscription and scale set, and every retry uses them up.
- Protection from scale-in for every instance (protectFromScaleIn), no autoscale rules of its own, and
  `singlePlacementGroup: false` above 100 instances.
"""

from __future__ import annotations

from typing import Protocol

from muster.fleet.scaling.snapshot import Fault, Group, PoolSpec


class ProviderError(Exception):
    """A request that was not answered as wanted; whether it took effect, `look` shows.

    Args:
        fault: what kind of trouble.
        message: in the provider's words, for people.
        wait_s: it asked to be left alone for so long; 0 where it did not.
    """

    def __init__(self, fault: Fault, message: str, wait_s: float = 0.0) -> None:
        super().__init__(message)
        self.fault = fault
        self.message = message
        self.wait_s = wait_s


class Provider(Protocol):
    """Gives nodes and takes them back. Methods raise ProviderError."""

    async def look(self, pool: PoolSpec) -> Group:
        """Return the pool as it is now."""

    async def set_size(self, pool: PoolSpec, size: int) -> None:
        """Have it keep so many instances."""

    async def delete(self, pool: PoolSpec, instance: str, *, replace: bool) -> None:
        """Delete the instance; it is no error where it is gone."""

    async def close(self) -> None:
        """Let go of connections and threads."""
