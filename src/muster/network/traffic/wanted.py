"""What the kernel counts on a node, and who is charged for it: pods, the data cache's jobs, image pulls, the host."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from muster.api.socket_marks import BASE, MASK
from muster.network.localpods.pod import LocalPod
from muster.network.traffic.backend import HOST, PULLS, TUNNEL, Subject, mark_subject
from muster.network.traffic.cachejobs import CacheJob
from muster.network.traffic.ledger.charges import Owner, Share
from muster.network.traffic.report import CACHE_JOB, HOST_JOB, PULLS_JOB, SHARED_JOB, TUNNEL_JOB

_FIXED: Final = {HOST: Owner("", HOST_JOB, ""), TUNNEL: Owner("", TUNNEL_JOB, "")}
_PULLS: Final = Owner("", PULLS_JOB, "")
_CACHE: Final = Owner("", CACHE_JOB, "")


class Wanted(NamedTuple):
    """What is to be counted.

    Attributes:
        subjects: for the backend.
        owners: by the ID of the subject, of these and of what the backend always counts.
        uncounted: host-network pods whose cgroup is not known.
    """

    subjects: tuple[Subject, ...]
    owners: Mapping[str, Owner]
    uncounted: tuple[str, ...]


def wanted(
    pods: Iterable[LocalPod],
    cgroups: Callable[[LocalPod], Sequence[str]],
    runtime_cgroup: str,
    cache_jobs: Iterable[CacheJob],
    *,
    all_by_cgroup: bool = False,
) -> Wanted:
    """Return the subjects of a node.

    A pod that has ended is left out: its address may already be another pod's. Of two pods with one address, which
    happens while the kubelet's report of an end is on its way, the newer one has it.

    Args:
        pods: of the node.
        cgroups: returns the folders of a pod, that of version 2 first.
        runtime_cgroup: the folder of the container runtime; "" if it is not known.
        cache_jobs: whose marks the data cache sets. A mark that it does not use is left out; of two jobs with one, the
            first has it.
        all_by_cgroup: the backend counts every pod by its cgroup, not only those on the host network.
    """
    subjects: list[Subject] = []
    owners: dict[str, Owner] = dict(_FIXED)
    uncounted: list[str] = []
    taken: set[str] = set()
    present = sorted((each for each in pods if not each.ended), key=lambda each: (-each.created_s, each.uid))
    for pod in present:
        if pod.host_network:
            found = cgroups(pod)
            if not found:
                uncounted.append(f"{pod.namespace}/{pod.name}")
                continue
            subject = Subject(id=_subject_id(pod.uid, found[:1]), cgroup=found[0])
        else:
            addresses = tuple(each for each in pod.addresses if each not in taken)
            taken.update(addresses)
            group = next(iter(cgroups(pod)), "") if all_by_cgroup else ""
            if not addresses and not group:
                continue
            subject = Subject(
                id=_subject_id(pod.uid, (*addresses, group) if group else addresses), addresses=addresses, cgroup=group
            )
        subjects.append(subject)
        owners[subject.id] = Owner(pod.namespace, pod.job, pod.team, pod.name)
    if runtime_cgroup:
        subjects.append(Subject(id=PULLS, cgroup=runtime_cgroup))
        owners[PULLS] = _PULLS
    teams = _teams(present)
    marks: set[int] = set()
    for job in cache_jobs:
        if job.mark & BASE and not job.mark & ~MASK and job.mark not in marks:
            marks.add(job.mark)
            subject = Subject(id=mark_subject(job.mark), mark=job.mark)
            subjects.append(subject)
            owners[subject.id] = _cache_owner(job, teams)
    return Wanted(tuple(subjects), owners, tuple(sorted(uncounted)))


def pull_shares(pods: Iterable[LocalPod], waited: Iterable[LocalPod]) -> tuple[Share, ...]:
    """Return who shares the bytes of image pulls: the jobs whose pods wait for an image, equally per image.

    Pods of one job that wait for the same image wait for one pull. An image that several jobs wait for counts for each.

    Args:
        pods: of the node now.
        waited: those of the reading before: a pull may have ended since.
    """
    waits = {(Owner(each.namespace, each.job, each.team), image) for each in (*pods, *waited) for image in each.pulling}
    counts: dict[Owner, int] = {}
    for owner, _ in waits:
        counts[owner] = counts.get(owner, 0) + 1
    return tuple(Share(owner, counts[owner]) for owner in sorted(counts))


def cache_shares(pods: Iterable[LocalPod], before: Iterable[CacheJob], now: Iterable[CacheJob]) -> tuple[Share, ...]:
    """Return who shares the traffic of a cache without marks: by what each job read from buckets since `before`."""
    teams = _teams(pods)
    old = {(each.namespace, each.job): each.bucket_bytes for each in before}
    weights: dict[Owner, int] = {}
    for job in now:
        read = old.get((job.namespace, job.job), 0)
        more = job.bucket_bytes - (read if read <= job.bucket_bytes else 0)
        if more > 0:
            owner = _cache_owner(job, teams)
            weights[owner] = weights.get(owner, 0) + more
    return tuple(Share(owner, weights[owner]) for owner in sorted(weights))


def rdma_owner(pods: Iterable[LocalPod], waited: Iterable[LocalPod] = ()) -> Owner:
    """Return who is charged for the RDMA ports of the node: the one job whose pods may use them.

    If several jobs may, the kernel does not know whose bytes they are. They are then a row of their own.

    Args:
        pods: of the node now.
        waited: those of the reading before: a pod may have ended since.
    """
    jobs = {Owner(each.namespace, each.job, each.team) for each in (*pods, *waited) if each.rdma and not each.ended}
    if not jobs:
        return _FIXED[HOST]
    return next(iter(jobs)) if len(jobs) == 1 else Owner("", SHARED_JOB, "")


def _subject_id(uid: str, places: Sequence[str]) -> str:
    """The UID and a digest of what the kernel counts by: the counters of another address are other counters."""
    digest = hashlib.blake2s(" ".join(places).encode(), digest_size=4).hexdigest()
    return f"{uid}.{digest}"


def _cache_owner(job: CacheJob, teams: Mapping[tuple[str, str], str]) -> Owner:
    return Owner(job.namespace, job.job, teams.get((job.namespace, job.job), "")) if job.job else _CACHE


def _teams(pods: Iterable[LocalPod]) -> dict[tuple[str, str], str]:
    return {(each.namespace, each.job): each.team for each in pods if each.job}
