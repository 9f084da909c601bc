"""The verbs of CNI: ADD, CHECK, DEL, GC and STATUS on the store of addresses and the kernel.

ADD holds an address on disk before it creates an interface. DEL removes the interface before it gives up the address.
So a kill at any step leaves a record, and no address is free while an interface has it. A repeated ADD or DEL, GC or
the reconciler finishes what a kill interrupted.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from muster.network.addresses.addresses import Addresses
from muster.network.addresses.attachment import AttachmentKey, State
from muster.network.cni import chained
from muster.network.cni.errors import CniError, Code
from muster.network.cni.interfaces.kinds import Kind
from muster.network.cni.interfaces.uplink import uplink_mtu
from muster.network.cni.interfaces.wanted import Made, Wanted
from muster.network.cni.invocation import Invocation
from muster.network.cni.names import host_interface_name, key_of_alias
from muster.network.cni.namespace import PodNamespace, pod_namespace
from muster.network.cni.netconf import Mode, NetConf, parse_netconf
from muster.network.cni.result import addresses_in, prev_result, result_of
from muster.network.cni.versions import check_version
from muster.network.netlink import link
from muster.network.netlink.socket import ROUTE, NetlinkSocket

log = logging.getLogger(__name__)

_LOCKS: Final = 256
_NETNS_MAX: Final = 512
"""Longest path of a namespace that is recorded."""
_ALL: Final = ("0.0.0.0/0", "::/0")


class Operations:
    """Carries out requests. It may be called by several threads; one attachment is handled by one at a time.

    Args:
        addresses: the store and the pool.
        kinds: the kinds of interfaces.
        problem: returns why existing pods may have lost connections, for STATUS; empty if they have not.
    """

    def __init__(
        self, addresses: Addresses, kinds: Mapping[Mode, Kind], problem: Callable[[], str] = lambda: ""
    ) -> None:
        self._addresses = addresses
        self._kinds = kinds
        self._problem = problem
        self._locks = tuple(threading.Lock() for _ in range(_LOCKS))

    def carry_out(self, invocation: Invocation) -> dict[str, Any] | None:
        """Carry out a request and return its result, if it has one.

        Raises:
            CniError: as the specification wants it.
            Exhausted: no address is free.
            StoreError: the store failed.
            NetlinkError: the kernel refused.
            TimeoutError: the kernel did not answer.
        """
        conf = parse_netconf(invocation.document.config)
        check_version(conf.cni_version)
        match invocation.document.command:
            case "ADD":
                return self._add(invocation, conf)
            case "DEL":
                self._del(invocation, conf)
            case "CHECK":
                self._check(invocation, conf)
            case "GC":
                self._gc(conf)
            case "STATUS":
                self._status(conf)
            case other:
                raise CniError(Code.INVALID_ENVIRONMENT, f"CNI_COMMAND {other} is not known")
        return None

    def _add(self, invocation: Invocation, conf: NetConf) -> dict[str, Any]:
        key = invocation.key()
        if conf.mode is Mode.CHAINED:
            with _host() as host, _required_namespace(invocation) as pod:
                return chained.add(host, pod, key.ifname, conf)
        kind = self._kinds[conf.mode]
        with self.exclusive(key), _host() as host, _required_namespace(invocation) as pod:
            if invocation.is_abandoned():  # the runtime may have called DEL since, and will not call it again
                raise CniError(Code.TRY_AGAIN_LATER, "the runtime gave up before ADD began")
            wanted = kind.prepare(host, Wanted(key, (), conf.mtu or uplink_mtu(host), conf.routes or _ALL, conf.master))
            known = self._addresses.find(key)
            if known is not None and known.state is State.ATTACHED:
                with contextlib.suppress(CniError):  # the answer to an earlier ADD was lost
                    wanted = kind.prepare(host, wanted._replace(addresses=known.addresses))
                    return result_of(conf, wanted, kind.check(host, pod, wanted), pod.path)
            try:
                assigned = self._addresses.reserve(key, invocation.pod(), pod.path, conf.name)
                wanted = kind.prepare(host, wanted._replace(addresses=assigned.addresses))
                made = kind.create(host, pod, wanted)
                result = result_of(conf, wanted, made, pod.path)
                self._attached(key, made)
            except BaseException:
                self._undo(host, pod, conf, key)
                raise
            return result

    def _attached(self, key: AttachmentKey, made: Made) -> None:
        try:
            self._addresses.attached(key, made.host_interface, made.mac)
        except KeyError:
            raise CniError(Code.TRY_AGAIN_LATER, "the attachment was deleted while ADD created it") from None

    def _undo(self, host: NetlinkSocket, pod: PodNamespace, conf: NetConf, key: AttachmentKey) -> None:
        """Remove what a failed ADD made. If that fails too, the address stays held until DEL, GC or the reconciler."""
        try:
            self._remove(host, pod, conf, key)
        except Exception:
            log.exception("ADD of %s failed and its interface could not be removed; its address stays held", key)

    def _del(self, invocation: Invocation, conf: NetConf) -> None:
        key = invocation.key()
        if conf.mode is Mode.CHAINED:
            return
        with self.exclusive(key), _host() as host, _optional_namespace(invocation) as pod:
            self._remove(host, pod, conf, key)

    def _remove(self, host: NetlinkSocket, pod: PodNamespace | None, conf: NetConf, key: AttachmentKey) -> None:
        """Remove the interface, then give up the address. The list may have had another mode at ADD."""
        known = self._addresses.releasing(key)
        modes = {conf.mode, Mode.VETH}
        if known is not None and known.mac and not known.host_interface:
            modes |= {Mode.MACVLAN, Mode.IPVLAN}
        for mode in sorted(modes):
            self._kinds[mode].delete(host, pod, key)
        self._addresses.release(key)

    def _check(self, invocation: Invocation, conf: NetConf) -> None:
        key = invocation.key()
        before = prev_result(conf)
        if before is None:
            raise CniError(Code.INVALID_CONFIG, "CHECK needs prevResult, the result of ADD")
        if conf.mode is Mode.CHAINED:
            with _required_namespace(invocation) as pod:
                chained.check(pod, key.ifname, conf)
            return
        with self.exclusive(key), _host() as host, _required_namespace(invocation) as pod:
            known = self._addresses.find(key)
            if known is None or known.state is not State.ATTACHED:
                raise CniError(Code.UNKNOWN_CONTAINER, f"{key.container_id} has no address for {key.ifname} here")
            missing = {each.ip for each in known.addresses} - addresses_in(before)
            if missing:
                raise CniError(Code.DIFFERS, f"prevResult does not have the pod's address {', '.join(sorted(missing))}")
            kind = self._kinds[conf.mode]
            kind.check(host, pod, kind.prepare(host, _wanted(host, conf, key)._replace(addresses=known.addresses)))

    def _gc(self, conf: NetConf) -> None:
        valid = conf.valid()
        if valid is None:
            log.warning("GC of network %s came without a list of valid attachments, so nothing is removed", conf.name)
        if valid is None or conf.mode is Mode.CHAINED:
            return
        with _host() as host:
            stale = {each.key for each in self._addresses.all() if each.network == conf.name}
            stale |= {key for key in _keys_in_kernel(host) if self._addresses.find(key) is None}
            failed = []
            for key in sorted(stale - valid):
                try:
                    with self.exclusive(key):
                        self._remove(host, None, conf, key)
                except OSError as error:
                    failed.append(f"{key.container_id}/{key.ifname}: {error}")
        if failed:
            raise CniError(
                Code.KERNEL_REFUSED, f"{len(failed)} attachments could not be removed", "; ".join(failed[:5])
            )

    def _status(self, conf: NetConf) -> None:
        problem = self._problem()
        if problem:
            raise CniError(Code.LIMITED_CONNECTIVITY, "pods of this node may have lost connections", problem)
        if conf.mode is Mode.CHAINED:
            return
        status = self._addresses.status()
        if not status.can_add:
            raise CniError(Code.NOT_AVAILABLE, "the node has no free address for a pod", status.message)

    @contextlib.contextmanager
    def exclusive(self, key: AttachmentKey) -> Iterator[None]:
        """Keep all other threads from working on an attachment."""
        with self._locks[hash(key) % _LOCKS]:
            yield


@contextlib.contextmanager
def _host() -> Iterator[NetlinkSocket]:
    with NetlinkSocket(ROUTE) as netlink:
        yield netlink


@contextlib.contextmanager
def _required_namespace(invocation: Invocation) -> Iterator[PodNamespace]:
    document = invocation.document
    if len(document.netns) > _NETNS_MAX:
        raise CniError(Code.INVALID_ENVIRONMENT, f"CNI_NETNS has more than {_NETNS_MAX} characters")
    pod = pod_namespace(invocation)
    if pod is None:
        if not document.netns:
            raise CniError(Code.INVALID_ENVIRONMENT, "CNI_NETNS is not set")
        raise CniError(
            Code.INVALID_NAMESPACE, f"the network namespace {document.netns} cannot be entered", document.files_error
        )
    with pod:
        yield pod


@contextlib.contextmanager
def _optional_namespace(invocation: Invocation) -> Iterator[PodNamespace | None]:
    try:
        pod = pod_namespace(invocation)
    except CniError:  # the pod's process ended, and its ID belongs to another one now
        pod = None
    if pod is None:
        yield None
        return
    with pod:
        yield pod


def _keys_in_kernel(host: NetlinkSocket) -> set[AttachmentKey]:
    """Return the attachments whose host interfaces exist. Both name and alias must agree."""
    found = set()
    for each in link.all_links(host):
        key = key_of_alias(each.alias)
        if key is not None and each.name == host_interface_name(key):
            found.add(key)
    return found


def _wanted(host: NetlinkSocket, conf: NetConf, key: AttachmentKey) -> Wanted:
    return Wanted(key, (), conf.mtu or uplink_mtu(host), conf.routes or _ALL, conf.master)
