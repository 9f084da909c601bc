"""Answers TokenReviews and access reviews. Every access is allowed, as RBAC is not enforced."""

from __future__ import annotations

from muster.embedded.apiserver.access.tokens import API_AUDIENCES, InvalidToken, TokenAuthority
from muster.embedded.apiserver.request import User
from muster.embedded.objects import Obj, items, section


def review(kind: str, api_version: str, body: Obj, user: User, tokens: TokenAuthority | None) -> Obj:
    """Answer a review."""
    answer: Obj = {
        "kind": kind,
        "apiVersion": api_version,
        "metadata": {"creationTimestamp": None},
        "spec": section(body, "spec"),
    }
    if kind == "TokenReview":
        answer["status"] = _token(section(body, "spec"), tokens)
    elif kind == "SelfSubjectReview":
        del answer["spec"]
        answer["status"] = {"userInfo": _user(user)}
    elif kind == "SelfSubjectRulesReview":
        answer["status"] = {
            "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}],
            "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
            "incomplete": False,
        }
    else:
        answer["status"] = {"allowed": True, "reason": "the embedded server does not enforce RBAC"}
    return answer


def _token(spec: Obj, tokens: TokenAuthority | None) -> Obj:
    audiences = tuple(str(item) for item in items(spec, "audiences")) or API_AUDIENCES
    try:
        if tokens is None:
            raise InvalidToken("this server issues no tokens")
        proof = tokens.check(str(spec.get("token", "")), audiences)
    except InvalidToken as error:
        return {"user": {}, "error": f"[invalid bearer token, {error}]"}
    return {"authenticated": True, "user": _user(proof.user), "audiences": list(proof.audiences)}


def _user(user: User) -> Obj:
    answer: Obj = {"username": user.name}
    if user.uid:
        answer["uid"] = user.uid
    if user.groups:
        answer["groups"] = list(user.groups)
    if user.extra:
        answer["extra"] = {name: list(values) for name, values in user.extra.items()}
    return answer
