"""Typed reasons why a gang waits and why a node rejects a pod; shared by decide, Events and explain."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

import msgspec

from muster.api.words import counted


class Why(StrEnum):
    """Why a gang is not running on nodes yet. Values are the reasons of events and metrics: never rename one."""

    WAITING_FOR_PODS = "WaitingForPods"
    WAITING_FOR_WORKLOAD = "WaitingForWorkload"
    GATED = "SchedulingGated"
    NOT_SUPPORTED = "NotSupported"
    INVALID = "InvalidGang"
    WAITING_FOR_VOLUME = "WaitingForVolume"
    NOT_ENOUGH_NODES = "NotEnoughNodes"
    MORE_THAN_THE_CLUSTER = "MoreThanTheCluster"
    TOO_MANY_WAYS = "TooManyWays"
    BEHIND = "BehindInQueue"
    WAITING_FOR_OLD_POD = "WaitingForOldPod"
    OLD_PLACEMENT = "OldPlacementInTheWay"
    MAKING_ROOM = "MakingRoom"
    LEAVING = "Leaving"
    BINDING = "Binding"
    RELEASING = "Releasing"


class NodeWhy(StrEnum):
    """Why a node rejects a pod, in the order of the checks; the first that applies counts."""

    GONE = "NodeGone"
    REPLACED = "NodeReplaced"
    NOT_READY = "NodeNotReady"
    UNSCHEDULABLE = "NodeUnschedulable"
    OTHER_TEAM = "OwnedByTeam"
    EXCLUDED = "NodeExcluded"
    SELECTOR = "NodeSelectorMismatch"
    AFFINITY = "NodeAffinityMismatch"
    VOLUME = "VolumeElsewhere"
    UNTESTED = "Untested"
    TAINT = "UntoleratedTaint"
    TOO_SMALL = "NodeTooSmall"
    OTHER_GPU_COUNT = "OtherGpuCount"
    MIXED_POOL = "MixedPool"
    OUTSIDE_POOLS = "OutsidePools"
    CHANGES_HANDS = "ChangesHands"
    TESTED_TOO_LONG_AGO = "TestedTooLongAgo"
    HOST_PORT = "HostPortTaken"
    POD_AFFINITY = "PodAffinityMismatch"
    POD_ANTI_AFFINITY = "PodAntiAffinity"
    TOPOLOGY_SPREAD = "TopologySpread"
    IN_USE = "InUse"
    LENT = "Lent"
    PROTECTED = "ProtectedByBudget"
    EVICTION_REFUSED = "EvictionRefused"
    BIND_FAILED = "BindFailed"
    RESERVED = "ReservedForHead"
    FREE = "Free"


class NodeReason(msgspec.Struct, frozen=True):
    """A reason for nodes; `detail` names the taint, the selector, the resources or the gang."""

    why: NodeWhy
    detail: str = ""

    def text(self) -> str:
        """Return a few words that follow a node count, such as "not ready" in "1 not ready"."""
        words = _NODE_WORDS[self.why]
        return words.format(detail=self.detail) if "{detail}" in words else words


_NODE_WORDS: Mapping[NodeWhy, str] = MappingProxyType(
    {
        NodeWhy.GONE: "gone",
        NodeWhy.REPLACED: "replaced by another node of the same name",
        NodeWhy.NOT_READY: "not ready",
        NodeWhy.UNSCHEDULABLE: "cordoned",
        NodeWhy.OTHER_TEAM: "owned by team {detail}",
        NodeWhy.EXCLUDED: "excluded by name (after a fault there, or by the pods' own affinity)",
        NodeWhy.SELECTOR: "without {detail}",
        NodeWhy.AFFINITY: "outside the required node affinity",
        NodeWhy.VOLUME: "out of reach of volume {detail}",
        NodeWhy.UNTESTED: "untested ({detail})",
        NodeWhy.TAINT: "with taint {detail}",
        NodeWhy.TOO_SMALL: "too small ({detail})",
        NodeWhy.OTHER_GPU_COUNT: "with another GPU count ({detail})",
        NodeWhy.MIXED_POOL: "in a pool that is not exclusive ({detail})",
        NodeWhy.OUTSIDE_POOLS: "outside the pools (without label {detail})",
        NodeWhy.CHANGES_HANDS: "about to be given to another team",
        NodeWhy.TESTED_TOO_LONG_AGO: "not tested within {detail}",
        NodeWhy.HOST_PORT: "with host port {detail} taken",
        NodeWhy.POD_AFFINITY: "away from pods they must be near ({detail})",
        NodeWhy.POD_ANTI_AFFINITY: "beside pods they must keep away from ({detail})",
        NodeWhy.TOPOLOGY_SPREAD: "in domains with too many such pods ({detail})",
        NodeWhy.IN_USE: "in use ({detail})",
        NodeWhy.LENT: "lent to {detail}",
        NodeWhy.PROTECTED: "in use by gangs that may not be evicted ({detail})",
        NodeWhy.EVICTION_REFUSED: "in use by gangs whose eviction was refused ({detail})",
        NodeWhy.BIND_FAILED: "where binding failed",
        NodeWhy.RESERVED: "kept for {detail}",
        NodeWhy.FREE: "free",
    }
)


class Reason(msgspec.Struct, frozen=True):
    """Why a gang waits: `have` of `need` (pods, or nodes), what it waits for, and the team of that.

    Attributes:
        detail: what it waits for, for people.
        head: key of the gang that is ahead in the queue; "" if it does not wait for one.
    """

    why: Why
    need: int = 0
    have: int = 0
    detail: str = ""
    team: str = ""
    head: str = ""

    def text(self) -> str:
        """Return the reason as one sentence."""
        return _WORDS[self.why].format(
            need=self.need,
            need_pods=counted(self.need, "pod"),
            have=self.have,
            detail=self.detail + (f" of {self.team}" if self.team else ""),
        )


_WORDS: Mapping[Why, str] = MappingProxyType(
    {
        Why.WAITING_FOR_PODS: "waiting for pods: {have} of {need} are there",
        Why.WAITING_FOR_WORKLOAD: "waiting to learn how many members there are: {detail} does not exist, or its kind "
        "is not served here; pods so far: {have}",
        Why.GATED: "waiting: {detail}",
        Why.NOT_SUPPORTED: "{detail}",
        Why.INVALID: "{detail}",
        Why.WAITING_FOR_VOLUME: "waiting for a volume: {detail}",
        Why.NOT_ENOUGH_NODES: "needs room for {need_pods} more and there is room for {have}; nodes that could serve it "
        "are kept for it as they become free",
        Why.MORE_THAN_THE_CLUSTER: "needs room for {need_pods}; if all usable nodes were empty, they would have room "
        "for {have}",
        Why.TOO_MANY_WAYS: "found no nodes that meet all rules about other pods for {need} pods, only for {have}, "
        "within the bounded search: fewer rules, or rules over fewer different labels, can be decided",
        Why.BEHIND: "waiting behind {detail}, which is earlier in the queue and could use the same nodes",
        Why.WAITING_FOR_OLD_POD: "waiting for pods of an earlier attempt to leave their nodes: {detail}",
        Why.OLD_PLACEMENT: "waiting for the placement of an earlier job of this name to go",
        Why.MAKING_ROOM: "has its nodes as soon as the last pods of others are gone: {detail}",
        Why.LEAVING: "gives its nodes back: {detail}",
        Why.BINDING: "being bound: {have} of {need_pods}",
        Why.RELEASING: "was not bound as a whole in time; its pods are being released",
    }
)
