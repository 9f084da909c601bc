"""Computes Ed25519 public keys (RFC 8032, section 5.1.5), which the standard library cannot. ssh makes the signatures.

It does not run in constant time. That is safe: it runs once per attempt, in the pod that has the secret key.
"""

from __future__ import annotations

import hashlib
from typing import Tuple

Point = Tuple[int, int, int, int]  # extended homogeneous coordinates (X, Y, Z, T): x = X/Z, y = Y/Z, x*y = T/Z

P = 2**255 - 19
D = -121665 * pow(121666, -1, P) % P
BASE_Y = 4 * pow(5, -1, P) % P
BASE_X = 15112221349535400772501151409588531511454012693041857206046113283949847762202
BASE: Point = (BASE_X, BASE_Y, 1, BASE_X * BASE_Y % P)


def add(p: Point, q: Point) -> Point:
    """Add two points, which may be equal (RFC 8032, section 5.1.4)."""
    a, b = (p[1] - p[0]) * (q[1] - q[0]) % P, (p[1] + p[0]) * (q[1] + q[0]) % P
    c, d = 2 * p[3] * q[3] * D % P, 2 * p[2] * q[2] % P
    e, f, g, h = b - a, d - c, d + c, b + a
    return e * f % P, g * h % P, f * g % P, e * h % P


def doublings() -> list[Point]:
    """Return the base point multiplied by 1, 2, 4 and so on, up to 2**254."""
    points = [BASE]
    while len(points) < 255:
        points.append(add(points[-1], points[-1]))
    return points


DOUBLINGS = doublings()


def public_key(seed: bytes) -> bytes:
    """Return the public key (32 bytes) of a 32-byte secret key."""
    digest = bytearray(hashlib.sha512(seed).digest()[:32])
    digest[0] &= 248
    digest[31] = digest[31] & 127 | 64
    scalar = int.from_bytes(digest, "little")
    total: Point = (0, 1, 1, 0)
    for bit, point in enumerate(DOUBLINGS):
        if scalar >> bit & 1:
            total = add(total, point)
    inverse = pow(total[2], -1, P)
    x, y = total[0] * inverse % P, total[1] * inverse % P
    return (y | (x & 1) << 255).to_bytes(32, "little")
