"""How often the bucket is read when several readers of a node, or the nodes of a gang, read the same shards."""

from __future__ import annotations

import json
import secrets
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from msgspec import to_builtins
from msgspec.structs import replace

from bench.data.caches import NodeCache, node_caches
from bench.data.processes import Measured, Worker, run_together
from bench.data.reading import Say
from bench.data.stage import Stage
from muster.api.cache_ticket import Peer, PeerList, Ticket, TicketSigner, gang_key, key_digest

READERS = 4
NODES = 3
SIDE = "cached_files"


def readers(stage: Stage, repetitions: int, say: Say) -> dict[str, list[Measured]]:
    """Four readers of one node read all shards at the same time through an empty cache."""
    results: dict[str, list[Measured]] = defaultdict(list)
    with node_caches(stage.folder / "readers", 1) as (cache,):
        for repetition in range(repetitions):
            if repetition:
                cache.empty()
            results[f"{READERS}_readers"].append(_together(stage, [cache] * READERS, {}, say))
    return results


def gang(stage: Stage, repetitions: int, say: Say) -> dict[str, list[Measured]]:
    """Three nodes with a cache each, whose readers are one gang, read all shards at the same time."""
    results: dict[str, list[Measured]] = defaultdict(list)
    for repetition in range(repetitions):
        with gang_of_nodes(stage.folder / f"gang-{repetition}", NODES) as (caches, tickets):
            results[f"{NODES}_nodes"].append(_together(stage, caches, tickets, say))
    return results


@contextmanager
def gang_of_nodes(folder: Path, count: int) -> Iterator[tuple[list[NodeCache], dict[str, Path]]]:
    """Caches that trust one signer, and the ticket file of each node's reader, by the node's name."""
    folder.mkdir(parents=True)
    signer, key = TicketSigner(secrets.token_bytes(32)), gang_key(secrets.token_hex(32))
    public = folder / "ticket.pub"
    public.write_text(signer.public_key + "\n")
    with node_caches(folder, count, f"--ticket-key={public}") as caches:
        group = tuple(Peer(slot, cache.address) for slot, cache in enumerate(caches))
        tickets = {}
        for slot, cache in enumerate(caches):
            peers = PeerList(group=group, partner=group[(slot + 1) % count])
            tickets[cache.name] = _ticket(folder, cache, slot, signer, key, peers)
        yield caches, tickets


def _ticket(folder: Path, cache: NodeCache, slot: int, signer: TicketSigner, key: str, peers: PeerList) -> Path:
    ticket = Ticket(
        uid="bench",
        namespace="default",
        job="bench",
        attempt=2,  # the first one has no checkpoints to restore
        slot=slot,
        expires=int(time.time()) + 3600,
        key=key_digest(key),
        peers=peers.digest(),
    )
    path = folder / f"{cache.name}.ticket"
    path.write_text(json.dumps({"ticket": signer.sign(ticket), "key": key, "peers": to_builtins(peers)}))
    return path


def _together(stage: Stage, caches: Sequence[NodeCache], tickets: dict[str, Path], say: Say) -> Measured:
    """One reader for each entry of `caches`; returns the slowest, with the bytes and CPU seconds of all."""
    environments = [
        {
            **stage.server.environment(),
            **cache.environment(),
            **({"MUSTER_CACHE_TICKET": str(tickets[cache.name])} if tickets else {}),
        }
        for cache in caches
    ]
    before = {cache.name: cache.cpu_s() for cache in caches}
    with stage.server.counted() as used:
        workers = [Worker(SIDE, stage.settings(passes=1), environment) for environment in environments]
        done = run_together(workers)
    slowest = max(done, key=lambda each: each.seconds)
    own = {cache.name: cache.cpu_s() for cache in caches}
    result = replace(
        slowest,
        bytes=sum(each.bytes for each in done),
        cpu_s=sum(each.cpu_s for each in done) + sum(own[name] - before[name] for name in own),
        peak_mb=max(cache.peak_mb() for cache in caches),
        downloads=used["sent_bytes"] / stage.total_bytes,
    )
    say(
        f"{len(caches):>4} readers {result.mb_per_s:7.0f} MB/s together, {result.cpu_s_per_gb:5.2f} CPU s/GB, "
        f"the bucket sent {result.downloads:.3f} times the shards"
    )
    return result
