"""Fields that field selectors may use, per kind, with kube-apiserver's error texts.

Labels that a selector may use: AddFieldLabelConversionFunc in k8s.io/kubernetes pkg/apis/*/v1/conversion.go. Values:
ToSelectableFields in pkg/registry/*/*/strategy.go. Field numbers: the generated.proto files of k8s.io/api. Custom
resources: crConverter in k8s.io/apiextensions-apiserver.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from muster.kube.objects.selectors import SelectorError
from muster.readcache.kinds import CachedKind

Form = Literal["string", "bool", "int", "any"]
_METADATA: Final = ("metadata.name", "metadata.namespace")


@dataclass(frozen=True, slots=True)
class SelectableField:
    """A field.

    Attributes:
        label: its name in kube-apiserver's field sets.
        path: where it lies in JSON.
        numbers: where it lies in protobuf; empty for custom resources.
        form: type of its value; `any` for custom resources, whose values are written as Go's fmt.Sprint does.
        fallback: label of the field whose value counts if this one has none.
    """

    label: str
    path: tuple[str, ...]
    numbers: tuple[int, ...] = ()
    form: Form = "string"
    fallback: str = ""


@dataclass(frozen=True, slots=True)
class SelectableFields:
    """The fields of a kind.

    Attributes:
        fields: fields besides metadata.name and metadata.namespace.
        labels: labels that selectors may use, and the name in field sets for each.
        error: text for any other label, with `{label}` and `{quoted}` (as Go's %q) for it.
        defaults: values of fields that an object does not have.
        fallbacks: pairs of fields; the second one's value counts if the first one has none.
    """

    fields: tuple[SelectableField, ...]
    labels: Mapping[str, str]
    error: str = "field label not supported: {label}"
    defaults: dict[str, str] = field(init=False)
    fallbacks: tuple[tuple[str, str], ...] = field(init=False)

    def __post_init__(self) -> None:
        defaults = {each.label: _DEFAULTS[each.form] for each in self.fields if each.form in _DEFAULTS}
        object.__setattr__(self, "defaults", defaults)
        object.__setattr__(
            self, "fallbacks", tuple((each.label, each.fallback) for each in self.fields if each.fallback)
        )

    def internal(self, label: str) -> str:
        """Returns the name in field sets for a label of a selector.

        Raises:
            SelectorError: the kind has no such field; the text is the message of kube-apiserver's 400.
        """
        found = self.labels.get(label)
        if found is None:
            raise SelectorError(self.error.format(label=label, quoted=go_quoted(label)))
        return found

    def complete(self, values: Mapping[str, str]) -> dict[str, str]:
        """Returns what kube-apiserver compares with, where `values` are those of an object; without empty values."""
        found = self.defaults.copy()
        for label, value in values.items():
            if value:
                found[label] = value
        for label, other in self.fallbacks:
            if label not in found and other in found:
                found[label] = found[other]
        return found


_DEFAULTS: Final = {"bool": "false", "int": "0"}

# kind: `label path-in-protobuf [form] [@path-in-JSON] [|fallback]`, separated by `;`
_FIELDS: Final = {
    "v1/Pod": """spec.nodeName 2.10; spec.restartPolicy 2.3; spec.schedulerName 2.19; spec.serviceAccountName 2.8;
        spec.hostNetwork 2.11 bool; status.phase 3.1; status.podIP 3.6; status.nominatedNodeName 3.11""",
    "v1/Node": "spec.unschedulable 2.4 bool",
    "v1/Event": """involvedObject.kind 2.1; involvedObject.namespace 2.2; involvedObject.name 2.3;
        involvedObject.uid 2.4; involvedObject.apiVersion 2.5; involvedObject.resourceVersion 2.6;
        involvedObject.fieldPath 2.7; reason 3; reportingComponent 14; source 5.1 @source.component |reportingComponent;
        type 9""",
    "events.k8s.io/v1/Event": """involvedObject.kind 8.1 @regarding.kind;
        involvedObject.namespace 8.2 @regarding.namespace; involvedObject.name 8.3 @regarding.name;
        involvedObject.uid 8.4 @regarding.uid; involvedObject.apiVersion 8.5 @regarding.apiVersion;
        involvedObject.resourceVersion 8.6 @regarding.resourceVersion;
        involvedObject.fieldPath 8.7 @regarding.fieldPath; reason 7;
        reportingComponent 4 @reportingController; type 11""",
    "v1/Secret": "type 3",
    "v1/Namespace": "status.phase 3.1",
    "v1/Service": "spec.clusterIP 2.3; spec.type 2.4",
    "v1/ReplicationController": "status.replicas 3.1 int",
    "batch/v1/Job": "status.successful 3.5 int @status.succeeded",
    "certificates.k8s.io/v1/CertificateSigningRequest": "spec.signerName 2.7",
    "resource.k8s.io/v1/ResourceSlice": "spec.nodeName 2.3; spec.driver 2.1",
}
# labels that kinds without namespaces refuse; the others of the table accept both
_WITHOUT_NAMESPACE: Final = (
    "v1/Node",
    "v1/Namespace",
    "certificates.k8s.io/v1/CertificateSigningRequest",
    "resource.k8s.io/v1/ResourceSlice",
)
# labels that are accepted besides the fields' own: an old name, and one that no object has a value for
_ALIASES: Final = {
    "v1/Pod": {"spec.host": "spec.nodeName", "status.podIPs": "status.podIPs"},
    "events.k8s.io/v1/Event": {
        **{
            f"regarding.{name}": f"involvedObject.{name}"
            for name in (
                "kind",
                "namespace",
                "name",
                "uid",
                "apiVersion",
                "resourceVersion",
                "fieldPath",
            )
        },
        "reportingController": "reportingComponent",
        "reason": "reason",
        "type": "type",
    },
}
_ERRORS: Final = {
    "batch/v1/Job": "field label {quoted} not supported for Job",
    "resource.k8s.io/v1/ResourceSlice": (
        "field label not supported for resource.k8s.io/v1, Kind=ResourceSlice: {label}"
    ),
}
_OTHER_ERROR: Final = '{quoted} is not a known field selector: only "metadata.name", "metadata.namespace"'


def selectable_fields(kind: CachedKind) -> SelectableFields:
    """Returns the fields that selectors may use."""
    resource = kind.resource
    if kind.custom:
        return _custom(kind)
    key = f"{resource.api_version}/{resource.kind}"
    if key not in _FIELDS:
        return SelectableFields((), {label: label for label in _METADATA}, _OTHER_ERROR)
    fields = tuple(map(_parse, _FIELDS[key].split(";")))
    aliases = _ALIASES.get(key, {})
    labels = {label: label for label in (_METADATA[:1] if key in _WITHOUT_NAMESPACE else _METADATA)}
    if resource.group != "events.k8s.io":
        labels |= {each.label: each.label for each in fields}
    return SelectableFields(fields, labels | aliases, _ERRORS.get(key, "field label not supported: {label}"))


def _custom(kind: CachedKind) -> SelectableFields:
    paths = [path.removeprefix(".") for path in kind.selectable]
    fields = tuple(SelectableField(path, tuple(path.split(".")), form="any") for path in paths)
    metadata = _METADATA if kind.resource.namespaced else _METADATA[:1]
    return SelectableFields(fields, {label: label for label in (*metadata, *paths)})


def _parse(text: str) -> SelectableField:
    label, numbers, *rest = text.split()
    path = next((word[1:] for word in rest if word[0] == "@"), label)
    form: Form = "bool" if "bool" in rest else "int" if "int" in rest else "string"
    fallback = next((word[1:] for word in rest if word[0] == "|"), "")
    return SelectableField(label, tuple(path.split(".")), tuple(map(int, numbers.split("."))), form, fallback)


def go_quoted(text: str) -> str:
    """Returns a text as Go's %q writes it."""
    return '"' + "".join(map(_quoted_rune, text)) + '"'


_ESCAPES: Final = {
    "\\": "\\\\",
    '"': '\\"',
    "\a": "\\a",
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
    "\v": "\\v",
}


def _quoted_rune(rune: str) -> str:
    if rune in _ESCAPES:
        return _ESCAPES[rune]
    if rune.isprintable():
        return rune
    code = ord(rune)
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
