"""Checks the fields of clients' objects. A wrong type is an error (400); for unknown fields the request decides."""

from __future__ import annotations

from collections.abc import Sequence

from muster.embedded.apiserver.status import StatusError, bad_request, invalid, invalid_object
from muster.embedded.apiserver.types.field_table import type_name
from muster.embedded.apiserver.types.field_types import FieldTypeError, checked
from muster.embedded.apiserver.types.strategy import Context
from muster.embedded.objects import Obj, encode


def typed(obj: Obj, api_version: str, kind: str) -> Obj:
    """Return the object of a built-in kind without unknown fields.

    Raises:
        StatusError: 400 if a field has the wrong type.
    """
    try:
        return checked(obj, type_name(api_version, kind))[0]
    except FieldTypeError as error:
        raise _wrong_type(kind, api_version, error) from None


def received(context: Context, obj: Obj, api_version: str, kind: str, part: str = "") -> Obj:
    """Return a client's object of a built-in kind without unknown fields. Unknown fields are reported.

    Args:
        context: the request being answered.
        obj: the object.
        api_version: its version, which names the type with `kind`.
        kind: its kind.
        part: the type, such as `meta.v1.ObjectMeta`, if `obj` is only a part of an object.

    Raises:
        StatusError: 400 for a field of another type and, under strict validation, for an unknown one; 422 in a patch.
    """
    try:
        obj, unknown = checked(obj, part or type_name(api_version, kind))
    except FieldTypeError as error:
        if context.patching:
            raise invalid_object("", "", "", [invalid("patch", encode(obj).decode(), str(error))]) from None
        raise _wrong_type(kind, api_version, error) from None
    if unknown:
        report_unknown(context, obj, api_version.rpartition("/")[2], kind, unknown)
    return obj


def report_unknown(context: Context, obj: Obj, version: str, kind: str, paths: Sequence[str]) -> None:
    """Refuse unknown fields, warn about them, or ignore them, as the request's fieldValidation asks.

    Raises:
        StatusError: 400 under strict validation, 422 in a patch.
    """
    texts = [f'unknown field "{path}"' for path in paths]
    if context.field_validation == "Strict":
        problem = f"strict decoding error: {', '.join(texts)}"
        if context.patching:
            raise invalid_object("", "", "", [invalid("patch", encode(obj).decode(), problem)])
        raise bad_request(f'{kind} in version "{version}" cannot be handled as a {kind}: {problem}')
    if context.field_validation != "Ignore":
        context.warnings.extend(texts)


def _wrong_type(kind: str, api_version: str, error: FieldTypeError) -> StatusError:
    version = api_version.rpartition("/")[2]
    return bad_request(f'{kind} in version "{version}" cannot be handled as a {kind}: {error}')
