"""The recorder as a sidecar of a DaemonSet: the patch of the manifest, and the files that containers share with it.

Programs find the API server by KUBERNETES_SERVICE_HOST and the files of their service account. The sidecar takes the
place of both: containers connect to it on loopback, and trust its authority instead of the cluster's.
"""

from __future__ import annotations

import asyncio
import datetime
import ssl
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from muster.doctor.pricing.manifest import Manifest
from muster.kube.connection.config import SERVICE_ACCOUNT_DIR
from muster.kube.connection.pki import CertificateAuthority
from muster.kube.connection.privatefile import write_private

CONTAINER: Final = "muster-recorder"
VOLUME: Final = "muster-recorder"
SHARED: Final = "/var/run/muster-recorder"
PORT: Final = 16443
_COPY_S: Final = 30.0
_LIFETIME: Final = datetime.timedelta(days=7)
"""A recording takes minutes, and the recorder does not renew its certificate."""


def sidecar_patch(manifest: Manifest, image: str) -> dict[str, Any]:
    """The strategic merge patch that adds the recorder to a DaemonSet (`kubectl patch --patch-file`).

    The recorder is an init container that is restarted always, so it runs before the other containers start.
    It needs Kubernetes 1.29 or newer.
    """
    spec = manifest.daemonset["spec"]["template"].get("spec") or {}
    return {
        "spec": {
            "template": {
                "spec": {
                    "initContainers": [_recorder(image)],
                    "containers": [_redirected(each) for each in spec.get("containers") or ()],
                    "volumes": [{"name": VOLUME, "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}],
                }
            }
        }
    }


def with_sidecar(manifest: Manifest, image: str) -> Manifest:
    """The manifest with the patch applied, for a canary."""
    daemonset = dict(manifest.daemonset)
    template = dict(daemonset["spec"]["template"])
    spec = dict(template.get("spec") or {})
    patch = sidecar_patch(manifest, image)["spec"]["template"]["spec"]
    spec["initContainers"] = [*patch["initContainers"], *(spec.get("initContainers") or ())]
    spec["volumes"] = [*(spec.get("volumes") or ()), *patch["volumes"]]
    spec["containers"] = [
        {
            **each,
            "env": [*_without(each.get("env"), "name", added["env"]), *added["env"]],
            "volumeMounts": [
                *_without(each.get("volumeMounts"), "mountPath", added["volumeMounts"]),
                *added["volumeMounts"],
            ],
        }
        for each, added in zip(spec.get("containers") or (), patch["containers"], strict=True)
    ]
    template["spec"] = spec
    daemonset["spec"] = {**daemonset["spec"], "template": template}
    return manifest._replace(daemonset=daemonset)


def _without(items: Any, key: str, replaced: list[dict[str, Any]]) -> list[Any]:
    names = {each[key] for each in replaced}
    return [each for each in items or () if each.get(key) not in names]


def _redirected(container: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": container["name"],
        "env": [
            {"name": "KUBERNETES_SERVICE_HOST", "value": "127.0.0.1"},
            {"name": "KUBERNETES_SERVICE_PORT", "value": str(PORT)},
            {"name": "KUBERNETES_SERVICE_PORT_HTTPS", "value": str(PORT)},
        ],
        "volumeMounts": [{"name": VOLUME, "mountPath": SERVICE_ACCOUNT_DIR, "readOnly": True}],
    }


def _recorder(image: str) -> dict[str, Any]:
    return {
        "name": CONTAINER,
        "image": image,
        "restartPolicy": "Always",
        "command": ["muster"],
        "args": ["doctor", "record", f"--listen=127.0.0.1:{PORT}", f"--share={SHARED}", "--output=-"],
        "env": [{"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
        "startupProbe": {
            "exec": {"command": ["test", "-s", f"{SHARED}/ca.crt"]},
            "periodSeconds": 1,
            "failureThreshold": 60,
        },
        "resources": {"requests": {"cpu": "50m", "memory": "96Mi"}, "limits": {"memory": "256Mi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": VOLUME, "mountPath": SHARED}],
    }


class Share:
    """The folder that other containers see as that of their service account."""

    def __init__(self, folder: Path, account: Path | None) -> None:
        """Remember where the files are.

        Args:
            folder: receives `ca.crt`, and `token` and `namespace` if there is an account.
            account: the recorder's own folder of the service account; None outside of a pod.
        """
        self._folder = folder
        self._account = account
        self._copied: dict[str, bytes] = {}
        self._trusted = b""

    @property
    def authority(self) -> Path:
        """The file that clients must trust."""
        return self._folder / "ca.crt"

    def tls(self) -> ssl.SSLContext:
        """Create an authority that lives only in memory, and the serving certificate for loopback.

        Raises:
            OSError: the key cannot be written below the folder.
        """
        authority = CertificateAuthority.create("muster-recorder", lifetime=_LIFETIME)
        pair = authority.issue_server("muster-recorder", ("127.0.0.1", "::1", "localhost"), lifetime=_LIFETIME)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        # Python loads keys only from files. The other containers run as any user, so they may not see the key.
        path = self._folder / ".recorder.pem"
        write_private(path, pair.certificate + pair.key)
        try:
            context.load_cert_chain(path)
        finally:
            path.unlink(missing_ok=True)
        self._trusted = authority.certificate
        return context

    def publish(self) -> None:
        """Write the files: the token first, because others wait for `ca.crt`. Raises OSError."""
        self._copy()
        self._write("ca.crt", self._trusted)

    async def follow(self, stop: asyncio.Event) -> None:
        """Copy the token again before it expires, until `stop` is set. The kubelet renews it each hour or so."""
        while not stop.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), _COPY_S)
            with suppress(OSError):
                self._copy()

    def _copy(self) -> None:
        for name in ("token", "namespace"):
            if self._account is not None:
                data = (self._account / name).read_bytes()
                if self._copied.get(name) != data:
                    self._write(name, data)
                    self._copied[name] = data

    def _write(self, name: str, data: bytes) -> None:
        new = self._folder / f".{name}.new"
        new.write_bytes(data)
        new.chmod(0o644)
        new.replace(self._folder / name)
