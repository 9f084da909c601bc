"""Tickets with which a job's pods use the node cache: signed by the controller, verified by every cache.

A ticket states which job, attempt and slot its holder belongs to. It contains digests of the gang's key and of the
peers' addresses, so a pod cannot combine its ticket with another key or with addresses of its own choice. Tickets are
bearer tokens: the supervisor keeps them in a file of mode 0600.

Form: base64url(JSON) "." base64url(Ed25519 signature). There is exactly one valid text for each content.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Iterable, Sequence
from typing import Annotated, Final

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

CACHE_CONFIG_MAP: Final = "muster-cache"
TICKET_KEY: Final = "ticket.pub"
"""Key of that ConfigMap: the public keys, the newest first."""
LIFETIME_S: Final = 24 * 3600.0
RENEW_S: Final = LIFETIME_S / 2
"""The controller sends a new ticket when the old one has less time left than this."""
CLOCK_SKEW_S: Final = 300.0
"""An expired ticket is accepted for this long, because the clock of a node may be ahead of the controller's."""
PUBLIC_KEYS_MAX: Final = 4
"""Keys that a cache accepts: the newest and earlier ones, for tickets signed before the cluster secret changed."""

_PURPOSE: Final = b"muster-cache-ticket/1"
_TICKET_CHARS_MAX: Final = 4096
_KEY_BYTES: Final = 32


class TicketRefused(Exception):
    """A ticket is not valid. The message names the reason and contains no part of the ticket."""


class Peer(msgspec.Struct, frozen=True):
    """The cache of a node of the attempt.

    Attributes:
        slot: the job's slot on that node.
        address: IP:PORT.
    """

    slot: int
    address: str


class PeerList(msgspec.Struct, frozen=True, kw_only=True):
    """The caches that one node may contact for an attempt.

    Attributes:
        group: nodes that share blocks, including the node itself if it has a cache.
        partner: keeps copies of this node's checkpoint shards; None without copies.
        near: nodes outside the group that may hold shards for this node.
    """

    group: tuple[Peer, ...] = ()
    partner: Peer | None = None
    near: tuple[Peer, ...] = ()

    def addresses(self) -> set[str]:
        """Addresses of all peers."""
        return {peer.address for part in (self.group, self._partners(), self.near) for peer in part}

    def digest(self, of_group: str = "") -> str:
        """SHA-256 of the list, in hex, for the ticket. `of_group`: the result of `group_digest`, if it is known."""
        others = [_listed(self._partners()), _listed(self.near)]
        return _sha256([of_group or group_digest(self.group), *others])

    def _partners(self) -> Sequence[Peer]:
        return (self.partner,) if self.partner is not None else ()


def group_digest(group: Iterable[Peer]) -> str:
    """SHA-256 of a group, in hex. All its nodes have the same."""
    return _sha256(_listed(group))


class Ticket(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of a ticket.

    Attributes:
        uid: UID of the TrainingJob. Two jobs of the same name have different UIDs.
        namespace: its namespace.
        job: its name.
        attempt: the attempt.
        slot: the slot whose pod holds the ticket.
        expires: seconds since the epoch.
        key: digest of the gang's key, from `key_digest`.
        peers: digest of the PeerList.
    """

    uid: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    namespace: Annotated[str, msgspec.Meta(max_length=253)]
    job: Annotated[str, msgspec.Meta(max_length=253)]
    attempt: Annotated[int, msgspec.Meta(ge=0)]
    slot: Annotated[int, msgspec.Meta(ge=0)]
    expires: Annotated[int, msgspec.Meta(ge=0)]
    key: str
    peers: str = ""


_decoder = msgspec.json.Decoder(Ticket)


class TicketSigner:
    """Signs tickets with a key that is derived from the cluster secret, so each leader signs with the same one."""

    def __init__(self, cluster_secret: bytes) -> None:
        seed = hmac.new(cluster_secret, _PURPOSE, hashlib.sha256).digest()
        self._key = Ed25519PrivateKey.from_private_bytes(seed)

    @property
    def public_key(self) -> str:
        """The public key, in base64."""
        return base64.b64encode(self._key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)).decode()

    def sign(self, ticket: Ticket) -> str:
        """Return the ticket's text."""
        payload = msgspec.json.encode(ticket)
        return f"{_encode(payload)}.{_encode(self._key.sign(_signed(payload)))}"


class TicketVerifier:
    """Verifies tickets.

    Args:
        public_keys: text of `ticket.pub`; empty lines and lines that begin with `#` are ignored. Raises ValueError if
            another line is not a key, or if there are too many keys.
    """

    def __init__(self, public_keys: str) -> None:
        lines = [line.strip() for line in public_keys.splitlines()]
        self._keys = [_public_key(line) for line in lines if line and not line.startswith("#")]
        if len(self._keys) > PUBLIC_KEYS_MAX:
            raise ValueError(f"{TICKET_KEY} has {len(self._keys)} keys; at most {PUBLIC_KEYS_MAX} are accepted")

    def verify(self, text: str, now: float) -> Ticket:
        """Return the content of a valid ticket. Raises TicketRefused."""
        payload, signature = _parts(text)
        if not any(_is_signed(key, payload, signature) for key in self._keys):
            raise TicketRefused("the signature is not of a key in ticket.pub")
        try:
            ticket = _decoder.decode(payload)
        except msgspec.DecodeError as error:
            raise TicketRefused(f"the content is not a ticket of this version: {error}") from None
        if msgspec.json.encode(ticket) != payload:
            raise TicketRefused("the content is not in canonical form")
        if now > ticket.expires + CLOCK_SKEW_S:
            raise TicketRefused(f"the ticket expired {now - ticket.expires:.0f} s ago")
        return ticket


def gang_key(attempt_key: str) -> str:
    """Return the key that the caches of an attempt share, in hex, from the attempt's key in hex."""
    return hmac.new(bytes.fromhex(attempt_key), b"cache", hashlib.sha256).hexdigest()


def key_digest(gang_key_hex: str) -> str:
    """Return the digest that binds a gang's key to a ticket. The key cannot be computed from it."""
    return hashlib.sha256(b"muster-gang-key/1\0" + gang_key_hex.encode()).hexdigest()


def merged_public_keys(newest: str, known: str) -> str:
    """Return the text of `ticket.pub` with this key first. The key before it stays, for tickets that it signed."""
    earlier = [line.strip() for line in known.splitlines() if line.strip() and not line.startswith("#")]
    if earlier[:1] == [newest]:
        return known
    return "\n".join([newest, *_valid(each for each in earlier if each != newest)[:1], ""])


def _listed(peers: Iterable[Peer]) -> list[list[object]]:
    return [[peer.slot, peer.address] for peer in peers]


def _sha256(value: object) -> str:
    return hashlib.sha256(json.dumps(value, separators=(",", ":")).encode()).hexdigest()


def _valid(lines: Iterable[str]) -> list[str]:
    return [line for line in lines if _is_key(line)]


def _is_key(line: str) -> bool:
    try:
        _public_key(line)
    except ValueError:
        return False
    return True


def _public_key(line: str) -> Ed25519PublicKey:
    try:
        raw = base64.b64decode(line, validate=True)
    except ValueError:
        raw = b""
    if len(raw) != _KEY_BYTES:
        raise ValueError(f"a line of {TICKET_KEY} is not a base64 Ed25519 key")
    return Ed25519PublicKey.from_public_bytes(raw)


def _signed(payload: bytes) -> bytes:
    return _PURPOSE + b"\0" + payload


def _is_signed(key: Ed25519PublicKey, payload: bytes, signature: bytes) -> bool:
    try:
        key.verify(signature, _signed(payload))
    except InvalidSignature:
        return False
    return True


def _parts(text: str) -> tuple[bytes, bytes]:
    if len(text) > _TICKET_CHARS_MAX:
        raise TicketRefused(f"the ticket is longer than {_TICKET_CHARS_MAX} characters")
    payload, dot, signature = text.partition(".")
    try:
        found = _decode(payload), _decode(signature)
    except ValueError:
        raise TicketRefused("the text is not a ticket") from None
    if not dot or f"{_encode(found[0])}.{_encode(found[1])}" != text:
        raise TicketRefused("the text is not a ticket in canonical form")
    return found


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decode(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
