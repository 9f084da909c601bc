"""Limits of the server."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServingSettings:
    """Limits of the server.

    Attributes:
        connections_max: open connections. At the limit, the connection that is idle for the longest time is closed.
        head_bytes_max: request line and headers together.
        handshake_s: for TLS.
        head_s: for the request line and the headers; as in kube-apiserver.
        idle_s: a connection without a request; as in kube-apiserver.
        stall_s: a client that takes no byte of a cached answer for this long is dropped.
        full_bytes: bytes that wait for a client before its watch is paused or the next piece of its answer is made.
        waiting_bytes_max: bytes that wait for all clients together. Above it, the client with the most is dropped.
        gzip_bytes_min: answers from this size on are compressed; as in kube-apiserver.
        gzip_level: as in kube-apiserver.
        grace_s: for the end of running requests when the server stops.
        watches_end_s: watches end spread over this time when the server stops.
        upstream_connect_s: to connect to the API server, with TLS.
        upstream_idle_s: an idle connection to the API server is closed; below the server's own 90 s.
        upstream_idle_max: idle connections to the API server.
    """

    connections_max: int = 20_000
    head_bytes_max: int = 64 << 10
    handshake_s: float = 10.0
    head_s: float = 32.0
    idle_s: float = 90.0
    stall_s: float = 30.0
    full_bytes: int = 64 << 10
    waiting_bytes_max: int = 512 << 20
    gzip_bytes_min: int = 128 << 10
    gzip_level: int = 1
    grace_s: float = 20.0
    watches_end_s: float = 10.0
    upstream_connect_s: float = 10.0
    upstream_idle_s: float = 60.0
    upstream_idle_max: int = 64
