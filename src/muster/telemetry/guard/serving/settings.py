"""Deadlines and limits of the HTTP side."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingSettings:
    """Deadlines and limits of the HTTP side.

    Attributes:
        connections_max: open connections of clients. More are closed at once.
        idle_s: how long a connection may wait for its next request, and may take to send the head of one.
        body_s: how long a client may take to send a body.
        body_max_bytes: greatest body of a request.
        bodies_max_bytes: greatest sum of the bodies that the guard holds.
        target_max_bytes: greatest request line.
        write_stall_s: how long a client may read nothing while bytes wait for it.
        lag_s: how long the slower clients of a shared answer may hold up the others, in all.
        window_bytes: bytes of one answer that may wait for its clients.
        hold_bytes: the head of an answer is sent once so many bytes are here, or all. Before that, an answer that
            breaks off still becomes an error that the client can read.
        head_s: time that Prometheus may take beyond the timeout of the request, until the head of its answer.
        stall_s: how long Prometheus may send nothing in the middle of an answer.
        answer_s: how long an answer may take in all, after its head.
        connect_s: for a connection to Prometheus.
        probe_connect_s: for a probe: shorter than a probe, so that an address that drops packets is found.
        upstream_connections_max: open connections to Prometheus for requests of clients.
        after_cancel_s: how long a request that was cancelled still counts in budgets, since Prometheus may continue
            it for a while.
        recheck_s: how often the callers of requests that take longer are identified again.
        stop_s: how long requests may go on after SIGTERM.
    """

    connections_max: int = 4096
    idle_s: float = 75.0
    body_s: float = 10.0
    body_max_bytes: int = 1 << 20
    bodies_max_bytes: int = 64 << 20
    target_max_bytes: int = 64 << 10
    write_stall_s: float = 30.0
    lag_s: float = 5.0
    window_bytes: int = 256 << 10
    hold_bytes: int = 64 << 10
    head_s: float = 5.0
    stall_s: float = 30.0
    answer_s: float = 300.0
    connect_s: float = 5.0
    probe_connect_s: float = 2.0
    upstream_connections_max: int = 256
    after_cancel_s: float = 2.0
    recheck_s: float = 5.0
    stop_s: float = 20.0
