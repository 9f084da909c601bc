"""Checks names of jobs, nodes, namespaces, contexts and clusters that users type, before any request."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, Final

import click
from click.core import ParameterSource

from muster.cli.errors import BadInput

_LABEL: Final = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_NAMESPACE: Final = re.compile(_LABEL)
_OBJECT: Final = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_OBJECT_MAX: Final = 253
_SHOWN_MAX: Final = 80

Callback = Callable[[click.Context, click.Parameter, Any], Any]


def valid_object_name(name: str) -> bool:
    """Return whether an object such as a job or a node can have this name (a DNS-1123 subdomain)."""
    return len(name) <= _OBJECT_MAX and _OBJECT.fullmatch(name) is not None


def valid_namespace(name: str) -> bool:
    """Return whether a namespace can have this name (a DNS-1123 label)."""
    return _NAMESPACE.fullmatch(name) is not None


def object_names(what: str, see: str) -> Callback:
    """Make a click callback that refuses an impossible name of a `what`.

    The hint `see` names the command that lists them.
    """

    def check(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
        _refuse_empty(context, parameter, value)
        for name in value if isinstance(value, tuple) else (value,):
            if name and not valid_object_name(name) and not context.resilient_parsing:
                raise BadInput(f"{_shown(name)} cannot be the name of a {what}", see)
        return value

    return check


def namespace(context: click.Context, parameter: click.Parameter, value: str) -> str:
    """Refuse an impossible name of a namespace; a click callback."""
    _refuse_empty(context, parameter, value)
    if value and not valid_namespace(value) and not context.resilient_parsing:
        raise BadInput(
            f"{_shown(value)} cannot be the name of a namespace", "kubectl get namespaces lists those of the cluster"
        )
    return value


NODE_NAMES: Final = object_names("node", "kubectl get nodes lists those of the cluster")


def node_argument(metavar: str = "NODE", **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Make a click argument for the name of a node, with a check."""
    return click.argument("name", metavar=metavar, callback=NODE_NAMES, **options)


def not_empty(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
    """Refuse an option that is given without content, such as "$UNSET" in a script; a click callback."""
    _refuse_empty(context, parameter, value)
    return value


def finite(context: click.Context, parameter: click.Parameter, value: float | None) -> float | None:
    """Refuse `nan` and `inf`, which are within every range of click; a click callback."""
    if value is not None and not math.isfinite(value):
        raise click.BadParameter(f"{value} is not a finite number")
    return value


def _refuse_empty(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    """Refuse an empty value: with the default instead, the command could change another object or cluster."""
    given = context.get_parameter_source(parameter.name or "") is ParameterSource.COMMANDLINE
    if given and not context.resilient_parsing and "" in (value if isinstance(value, tuple) else (value,)):
        shown = parameter.opts[0] if parameter.param_type_name == "option" else parameter.make_metavar(context)
        raise BadInput(f"{shown} is empty", "give it a value, or leave it out")


def _shown(name: str) -> str:
    return repr(name if len(name) <= _SHOWN_MAX else f"{name[:_SHOWN_MAX]}...")
