"""The manifest of a DaemonSet as the user wrote it: one DaemonSet, and possibly objects that it needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import yaml

_API_VERSION: Final = "apps/v1"


class ManifestError(ValueError):
    """The manifest cannot be priced; the message says why."""


class Manifest(NamedTuple):
    """A parsed manifest.

    Attributes:
        daemonset: the DaemonSet as plain data, with a namespace.
        others: the other objects, in order.
    """

    daemonset: Mapping[str, Any]
    others: tuple[Mapping[str, Any], ...]

    @property
    def name(self) -> str:
        """Name of the DaemonSet."""
        return str(self.daemonset["metadata"]["name"])

    @property
    def namespace(self) -> str:
        """Namespace of the DaemonSet."""
        return str(self.daemonset["metadata"]["namespace"])

    @property
    def account(self) -> str:
        """Service account of its pods, as `NAMESPACE/NAME`."""
        spec = self.daemonset["spec"]["template"].get("spec") or {}
        return f"{self.namespace}/{spec.get('serviceAccountName') or spec.get('serviceAccount') or 'default'}"


def parse_manifest(text: str, namespace: str) -> Manifest:
    """Read a manifest in YAML or JSON, of one or several documents or a List.

    Args:
        text: the manifest.
        namespace: for a DaemonSet that names none.

    Raises:
        ManifestError: it is not YAML, or does not hold exactly one DaemonSet with a name and a pod template.
    """
    try:
        documents = [each for each in yaml.safe_load_all(text) if each]
    except yaml.YAMLError as error:
        raise ManifestError(f"the manifest is not YAML: {error}") from error
    objects: list[Mapping[str, Any]] = []
    for each in documents:
        if not isinstance(each, dict):
            raise ManifestError("the manifest holds a document that is not an object")
        objects += each.get("items") or [] if each.get("kind") == "List" else [each]
    if not all(isinstance(each, dict) and isinstance(each.get("metadata"), dict) for each in objects):
        raise ManifestError("the manifest holds an object without metadata")
    found = [each for each in objects if each.get("kind") == "DaemonSet" and each.get("apiVersion") == _API_VERSION]
    if len(found) != 1:
        raise ManifestError(f"the manifest holds {len(found)} DaemonSets of {_API_VERSION}; give one with exactly one")
    (daemonset,) = found
    if not daemonset["metadata"].get("name"):
        raise ManifestError("the DaemonSet has no name")
    template = (daemonset.get("spec") or {}).get("template")
    if not isinstance(template, dict):
        raise ManifestError("the DaemonSet has no spec.template")
    metadata = {**daemonset["metadata"], "namespace": daemonset["metadata"].get("namespace") or namespace}
    others = tuple(each for each in objects if each is not daemonset)
    return Manifest({**daemonset, "metadata": metadata}, others)
