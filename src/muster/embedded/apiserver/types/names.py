"""Rules for names, labels, annotations and owner references, with kube-apiserver's messages.

Source: k8s.io/apimachinery `pkg/util/validation`, `pkg/api/validation`.
"""

from __future__ import annotations

import re
from typing import Any

from muster.embedded.apiserver.status import FieldError, forbidden_field, invalid, required
from muster.embedded.objects import Obj, items, section

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = _LABEL + r"(\." + _LABEL + ")*"
_LABEL_KEY = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_LABEL_VALUE = "(" + _LABEL_KEY + ")?"
_ENV_NAME = re.compile(r"[\x20-\x3c\x3e-\x7e]+")
_label = re.compile(_LABEL)
_subdomain = re.compile(_SUBDOMAIN)
_label_key = re.compile(_LABEL_KEY)
_label_value = re.compile(_LABEL_VALUE)
_config_key = re.compile(r"[-._a-zA-Z0-9]+")
SUFFIX_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"  # of generated names
ANNOTATIONS_BYTES = 256 * 1024


def _regex(message: str, pattern: str, *examples: str) -> str:
    shown = " or ".join(f"'{example}', " for example in examples)
    return f"{message} (e.g. {shown}regex used for validation is '{pattern}')"


def _too_long(limit: int) -> str:
    return f"must be no more than {limit} characters"


_START_END = "and must start and end with an alphanumeric character"


def label_problems(value: str) -> list[str]:
    """Problems of a DNS-1123 label (most names of namespaces, containers, volumes)."""
    problems = [_too_long(63)] if len(value) > 63 else []
    if "." in value and _subdomain.fullmatch(value):
        problems.append("must not contain dots")
    elif not _label.fullmatch(value):
        message = f"a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', {_START_END}"
        problems.append(_regex(message, _LABEL, "my-name", "123-abc"))
    return problems


def subdomain_problems(value: str) -> list[str]:
    """Problems of a DNS-1123 subdomain (most names)."""
    problems = [_too_long(253)] if len(value) > 253 else []
    if not _subdomain.fullmatch(value):
        message = (
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', "
            + _START_END
        )
        problems.append(_regex(message, _SUBDOMAIN, "example.com"))
    return problems


def path_segment_problems(value: str) -> list[str]:
    """Problems of a name that may be any path segment (RBAC)."""
    if value in (".", ".."):
        return [f"may not be '{value}'"]
    return [f"may not contain '{char}'" for char in "/%" if char in value]


def qualified_name_problems(value: str) -> list[str]:
    """Problems of a label or annotation key, resource name, condition type."""
    what = f"must consist of alphanumeric characters, '-', '_' or '.', {_START_END}"
    examples = ("MyName", "my.name", "123-abc")
    prefix, slash, name = value.rpartition("/")
    if "/" in prefix:
        return [
            "a valid label key "
            + _regex(what, _LABEL_KEY, *examples)
            + " with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
        ]
    problems = []
    if slash and not prefix:
        problems.append("prefix part must be non-empty")
    elif slash:
        problems += ["prefix part " + problem for problem in subdomain_problems(prefix)]
    if not name:
        problems.append("name part must be non-empty")
    elif len(name) > 63:
        problems.append("name part " + _too_long(63))
    if not _label_key.fullmatch(name):
        problems.append("name part " + _regex(what, _LABEL_KEY, *examples))
    return problems


def label_value_problems(value: str) -> list[str]:
    """Problems of a label's value."""
    problems = [_too_long(63)] if len(value) > 63 else []
    if not _label_value.fullmatch(value):
        message = (
            "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', "
            + _START_END
        )
        problems.append(_regex(message, _LABEL_VALUE, "MyValue", "my_value", "12345"))
    return problems


def env_name_problems(value: str) -> list[str]:
    """Problems of an environment variable's name."""
    if _ENV_NAME.fullmatch(value):
        return []
    return ["a valid environment variable name must consist only of printable ASCII characters other than '='"]


def config_key_problems(value: str) -> list[str]:
    """Problems of a key in a ConfigMap or Secret."""
    problems = [_too_long(253)] if len(value) > 253 else []
    if not _config_key.fullmatch(value):
        message = "a valid config key must consist of alphanumeric characters, '-', '_' or '.'"
        problems.append(_regex(message, "[-._a-zA-Z0-9]+", "key.name", "KEY_NAME", "key-name"))
    return problems


def validate_labels(labels: Any, field: str) -> list[FieldError]:
    """Check a label map."""
    errors = []
    for key, value in (labels or {}).items():
        errors += [invalid(field, key, problem) for problem in qualified_name_problems(key)]
        if isinstance(value, str):
            errors += [invalid(field, value, problem) for problem in label_value_problems(value)]
    return errors


def validate_metadata(obj: Obj, name_problems: list[str]) -> list[FieldError]:
    """Check the metadata of a new object. `problems` are those of its name."""
    meta = section(obj, "metadata")
    errors = []
    if not meta.get("name"):
        errors.append(required("metadata.name", "name or generateName is required"))
    else:
        errors += [invalid("metadata.name", meta["name"], problem) for problem in name_problems]
    return errors + validate_common(meta)


def validate_common(meta: Obj) -> list[FieldError]:
    """Check labels, annotations, owner references and finalizers."""
    errors = validate_labels(meta.get("labels"), "metadata.labels")
    annotations = meta.get("annotations") or {}
    for key in annotations:
        errors += [invalid("metadata.annotations", key, problem) for problem in qualified_name_problems(key.lower())]
    if sum(len(key) + len(str(value)) for key, value in annotations.items()) > ANNOTATIONS_BYTES:
        message = f"Too long: may not be more than {ANNOTATIONS_BYTES} bytes"
        errors.append(FieldError("FieldValueTooLong", "metadata.annotations", message))
    controllers = 0
    for index, owner in enumerate(items(meta, "ownerReferences")):
        for name in ("apiVersion", "kind", "name", "uid"):
            if not owner.get(name):
                errors.append(
                    invalid(f"metadata.ownerReferences[{index}].{name}", owner.get(name, ""), "must not be empty")
                )
        controllers += bool(owner.get("controller"))
    if controllers > 1:
        owners = items(meta, "ownerReferences")
        errors.append(invalid("metadata.ownerReferences", owners, "Only one reference can have Controller set to true"))
    for index, finalizer in enumerate(items(meta, "finalizers")):
        field = f"metadata.finalizers[{index}]"
        errors += [invalid(field, finalizer, problem) for problem in qualified_name_problems(finalizer)]
    return errors


def validate_metadata_update(new: Obj, old: Obj) -> list[FieldError]:
    """Check the metadata of an update against the stored object."""
    meta, before = section(new, "metadata"), section(old, "metadata")
    errors = []
    if before.get("deletionTimestamp"):
        added = [name for name in items(meta, "finalizers") if name not in items(before, "finalizers")]
        if added:
            names = ", ".join(f'"{name}"' for name in added)
            detail = (
                "no new finalizers can be added if the object is being deleted, "
                f"found new finalizers []string{{{names}}}"
            )
            errors.append(forbidden_field("metadata.finalizers", detail))
    errors += [
        invalid(f"metadata.{name}", meta.get(name), "field is immutable")
        for name in ("name", "namespace", "uid", "creationTimestamp")
        if meta.get(name) != before.get(name)
    ]
    return errors + validate_common(meta)
