"""Service account tokens: signed JWTs bound to an account and, if requested, to a pod.

Source: kubernetes pkg/serviceaccount/claims.go, pkg/registry/core/serviceaccount/storage/token.go.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import uuid
from typing import Any

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, utils

from muster.embedded.apiserver.request import User
from muster.embedded.apiserver.status import bad_request, conflict, invalid, invalid_object, not_found
from muster.embedded.apiserver.types.strategy import Context
from muster.embedded.objects import Obj, encode, items, parse_time, section, timestamp

ISSUER = "https://kubernetes.default.svc.cluster.local"
API_AUDIENCES = (ISSUER,)
DEFAULT_SECONDS, LEAST_SECONDS, MOST_SECONDS = 3600, 600, 1 << 32
_SIGNATURE_HALF = 32
_SIGNING = ec.ECDSA(
    hashes.SHA256(), deterministic_signing=True
)  # RFC 6979: deterministic signatures, so that simulations are reproducible
DELETED_POD_GRACE_S = 60.0  # tokens of a deleted pod stay valid this long after its deletion time, as upstream


class InvalidToken(Exception):
    """A token that is not valid."""


@dataclasses.dataclass(frozen=True)
class Proof:
    """The identity that a valid token proves."""

    user: User
    audiences: tuple[str, ...]


class TokenAuthority:
    """Issues and checks tokens with one key."""

    def __init__(self, context: Context, signing_key: bytes) -> None:
        self._context = context
        key = serialization.load_pem_private_key(signing_key, password=None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ValueError("the service account key is not an elliptic-curve key")
        self._key = key

    def request(self, namespace: str, name: str, body: Obj, *, dry_run: bool = False) -> Obj:
        """Answer a TokenRequest for a service account.

        Raises:
            StatusError: 404 if an object in the request does not exist; 400, 409 or 422 if the request is not valid.
        """
        account = self._get("serviceaccounts", f"{namespace}/{name}", name)
        spec = dict(section(body, "spec"))
        audiences = [str(item) for item in items(spec, "audiences")] or list(API_AUDIENCES)
        seconds = spec.get("expirationSeconds")
        seconds = DEFAULT_SECONDS if seconds is None else seconds
        errors = []
        if seconds < LEAST_SECONDS:
            errors.append(invalid("spec.expirationSeconds", seconds, "may not specify a duration less than 10 minutes"))
        if seconds > MOST_SECONDS:
            errors.append(
                invalid("spec.expirationSeconds", seconds, "may not specify a duration larger than 2^32 seconds")
            )
        if errors:
            raise invalid_object("TokenRequest", "authentication.k8s.io", "", errors)
        meta = account["metadata"]
        bound: Obj = {"namespace": namespace, "serviceaccount": {"name": name, "uid": meta["uid"]}}
        bound.update(self._bound(namespace, name, section(spec, "boundObjectRef")))
        now = self._context.clock.now()
        claims: Obj = {
            "aud": audiences,
            "exp": int(now) + seconds,
            "iat": int(now),
            "iss": ISSUER,
            "jti": str(uuid.UUID(int=self._context.random.getrandbits(128), version=4)),
            "kubernetes.io": bound,
            "nbf": int(now),
            "sub": f"system:serviceaccount:{namespace}:{name}",
        }
        spec.update(audiences=audiences, expirationSeconds=seconds)
        spec.setdefault("boundObjectRef", None)
        return {
            "kind": "TokenRequest",
            "apiVersion": "authentication.k8s.io/v1",
            "metadata": {
                "name": name,
                "namespace": namespace,
                "uid": meta["uid"],
                "creationTimestamp": timestamp(now),
            },
            "spec": spec,
            "status": {
                "token": "" if dry_run else self._sign(claims),
                "expirationTimestamp": timestamp(int(now) + seconds),
            },
        }

    def check(self, token: str, audiences: tuple[str, ...] = API_AUDIENCES) -> Proof:
        """Check a token for any of these audiences.

        Raises:
            InvalidToken: it is malformed, forged, expired, for another audience, or bound to a deleted object.
        """
        claims = self._verified(token)
        now = self._context.clock.now()
        if not claims.get("nbf", 0) - 10 <= now < claims.get("exp", 0):
            raise InvalidToken("service account token has expired")
        wanted = tuple(audience for audience in audiences if audience in items(claims, "aud"))
        if not wanted:
            raise InvalidToken(
                f"token audiences {claims.get('aud')} is invalid for the target audiences {list(audiences)}"
            )
        bound = section(claims, "kubernetes.io")
        namespace, account = bound.get("namespace", ""), section(bound, "serviceaccount")
        name = account.get("name", "")
        self._alive("serviceaccounts", f"{namespace}/{name}", account, now)
        extra: dict[str, tuple[str, ...]] = {
            "authentication.kubernetes.io/credential-id": (f"JTI={claims.get('jti')}",)
        }
        pod, node = section(bound, "pod"), section(bound, "node")
        if pod:
            self._alive("pods", f"{namespace}/{pod.get('name')}", pod, now)
            extra["authentication.kubernetes.io/pod-name"] = (pod["name"],)
            extra["authentication.kubernetes.io/pod-uid"] = (pod["uid"],)
        if node:
            if not pod:
                self._alive("nodes", str(node.get("name")), node, now)
            extra["authentication.kubernetes.io/node-name"] = (node["name"],)
            if node.get("uid"):
                extra["authentication.kubernetes.io/node-uid"] = (node["uid"],)
        secret = section(bound, "secret")
        if secret:
            self._alive("secrets", f"{namespace}/{secret.get('name')}", secret, now)
        groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated")
        return Proof(User(claims["sub"], account.get("uid", ""), groups, extra), wanted)

    def _bound(self, namespace: str, account: str, reference: Obj) -> Obj:
        if not reference:
            return {}
        kind, name = reference.get("kind", ""), reference.get("name", "")
        if kind == "Pod":
            obj = self._get("pods", f"{namespace}/{name}", name)
            if section(obj, "spec").get("serviceAccountName") != account:
                raise bad_request(
                    f'cannot bind token for serviceaccount "{account}" '
                    "to pod running with different serviceaccount name."
                )
        elif kind == "Node":
            obj = self._get("nodes", name, name)
        elif kind == "Secret":
            obj = self._get("secrets", f"{namespace}/{name}", name)
        else:
            raise bad_request(f"cannot bind token to object of type {reference.get('apiVersion', '')}, Kind={kind}")
        uid = obj["metadata"]["uid"]
        if reference.get("uid") and reference["uid"] != uid:
            why = (
                f"the UID in the bound object reference ({reference['uid']}) does not match the UID in record. "
                "The object might have been deleted and then recreated"
            )
            raise conflict(kind, "", name, why)
        found: Obj = {kind.lower(): {"name": name, "uid": uid}}
        node = section(obj, "spec").get("nodeName") if kind == "Pod" else ""
        if node:
            item = self._context.store.define("nodes").items.get(node)
            found["node"] = {"name": node, **({"uid": item.uid} if item is not None else {})}
        return found

    def _get(self, storage: str, key: str, name: str) -> Obj:
        item = self._context.store.define(storage).items.get(key)
        if item is None:
            raise not_found(storage, "", name)
        return item.object()

    def _alive(self, storage: str, key: str, claim: Obj, now: float) -> None:
        item = self._context.store.define(storage).items.get(key)
        what = storage.rstrip("s")
        if item is None or item.uid != claim.get("uid"):
            raise InvalidToken(f"{what} {key} is not there any more (uid {claim.get('uid')})")
        if item.terminating:
            deleted = parse_time(section(item.object(), "metadata").get("deletionTimestamp")) or 0.0
            if now > deleted + DELETED_POD_GRACE_S:
                raise InvalidToken(f"{what} {key} has been deleted")

    def _sign(self, claims: Obj) -> str:
        head = _encode(encode({"alg": "ES256", "kid": "muster", "typ": "JWT"}))
        signed = f"{head}.{_encode(encode(claims))}"
        r, s = utils.decode_dss_signature(self._key.sign(signed.encode(), _SIGNING))
        return f"{signed}.{_encode(r.to_bytes(_SIGNATURE_HALF, 'big') + s.to_bytes(_SIGNATURE_HALF, 'big'))}"

    def _verified(self, token: str) -> Obj:
        try:
            head, body, signature = token.split(".")
            raw = _decode(signature)
            if len(raw) != 2 * _SIGNATURE_HALF or msgspec.json.decode(_decode(head)).get("alg") != "ES256":
                raise InvalidToken("the token is not one of this server's")
            halves = [int.from_bytes(raw[i : i + _SIGNATURE_HALF], "big") for i in (0, _SIGNATURE_HALF)]
            der = utils.encode_dss_signature(*halves)
            self._key.public_key().verify(der, f"{head}.{body}".encode(), ec.ECDSA(hashes.SHA256()))
            claims: Any = msgspec.json.decode(_decode(body))
        except (ValueError, AttributeError, InvalidSignature, msgspec.DecodeError, binascii.Error):
            raise InvalidToken("the token is not one of this server's") from None
        if not isinstance(claims, dict):
            raise InvalidToken("the token is not one of this server's")
        return claims


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decode(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
