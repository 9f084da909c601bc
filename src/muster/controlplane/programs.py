"""A real Kubernetes control plane on this machine: etcd and kube-apiserver, and what else of it is asked for.

Everything listens on 127.0.0.1 behind certificates of its own, authorizes through RBAC, and keeps its data in one
folder. It has no nodes and no kubelet: what is asked of it is the API.
"""

from __future__ import annotations

import http.client
import os
import shutil
import ssl
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from muster.controlplane.children import Child
from muster.controlplane.clusteraccess import ClusterAccess, inline, write_kubeconfig
from muster.controlplane.goprograms import NotBuiltError, find_built
from muster.controlplane.ports import free_port
from muster.kube.connection.pki import CertificateAuthority, KeyPair, new_signing_key
from muster.kube.connection.privatefile import write_private

PROGRAMS_WITH_PORTS: Final = ("kube-apiserver", "etcd", "etcd-peer", "kube-controller-manager", "kube-scheduler")


class ControlPlaneUnavailableError(Exception):
    """The control plane cannot run here; the message says why, and how to change that."""


class ControlPlaneError(Exception):
    """A component died or did not become ready in time; the message ends with the last lines of its log."""


def find_binaries(*, build: bool = True) -> Path:
    """Return a folder that holds kube-apiserver and etcd (and kubectl; mostly the rest as well).

    KUBEBUILDER_ASSETS comes first, then the checkout's own build in the cache, built now where `build` allows and Go is
    installed.

    Raises:
        ControlPlaneUnavailableError: there is none and none can be built.
    """
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if assets:
        missing = [name for name in ("etcd", "kube-apiserver", "kubectl") if not (Path(assets) / name).is_file()]
        if missing:
            raise ControlPlaneUnavailableError(f"KUBEBUILDER_ASSETS ({assets}) lacks {', '.join(missing)}")
        return Path(assets)
    try:
        return find_built("controlplane", build=build)
    except NotBuiltError as error:
        raise ControlPlaneUnavailableError(f"{error}, or set KUBEBUILDER_ASSETS to a folder of binaries") from error


class ControlPlane:
    """A control plane, as a context manager: ready on entry, gone with its data on exit.

    Attributes:
        directory: certificates, data, logs and kubeconfigs; removed on exit unless it was given.
        url: the API server's address.
        access: kubectl and service accounts, as an administrator.
    """

    def __init__(
        self,
        binaries: Path | None = None,
        *,
        directory: Path | None = None,
        controller_manager: bool = True,
        scheduler: bool = False,
        feature_gates: Mapping[str, bool] | None = None,
        runtime_config: Mapping[str, bool] | None = None,
        extra_args: Mapping[str, Sequence[str]] | None = None,
        timeout_s: float = 120.0,
        ports: Mapping[str, int] | None = None,
        durable: bool = False,
    ) -> None:
        """Nothing runs yet.

        Args:
            binaries: where the programs lie; found with find_binaries() where not given.
            directory: an empty folder to use and leave behind, for looking at afterwards.
            controller_manager: run kube-controller-manager (without it nothing makes default service accounts, so
                pods that name none are refused).
            scheduler: run kube-scheduler.
            feature_gates: feature gates for every Kubernetes component.
            runtime_config: API groups and versions to switch on or off, for kube-apiserver.
            extra_args: more arguments by program name, such as `{"kube-apiserver": ["--v=4"]}`.
            timeout_s: how long each component may take to become ready, in seconds.
            ports: port by program name, and that of `etcd-peer`; free ones are chosen for the rest.
            durable: let etcd flush to disk what it answers, as a control plane that outlives a power cut needs.
        """
        self._binaries = binaries or find_binaries()
        self._own_directory = directory is None
        self.directory = directory or Path(tempfile.mkdtemp(prefix="muster-controlplane-"))
        self._optional = [
            name
            for name, wanted in (("kube-controller-manager", controller_manager), ("kube-scheduler", scheduler))
            if wanted
        ]
        self._feature_gates = dict(feature_gates or {})
        self._runtime_config = dict(runtime_config or {})
        self._extra_args = dict(extra_args or {})
        self._timeout_s = timeout_s
        self._children: dict[str, Child] = {}
        self._ports = {name: (ports or {}).get(name) or free_port() for name in PROGRAMS_WITH_PORTS}
        self._durable = durable
        self._port = self._ports["kube-apiserver"]
        self._etcd_url = f"https://127.0.0.1:{self._ports['etcd']}"
        self.url = f"https://127.0.0.1:{self._port}"
        self.access = ClusterAccess(self.directory / "admin.kubeconfig", self.directory, self._binaries / "kubectl")

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig. Our components use access.service_account_kubeconfig() instead."""
        return self.access.kubeconfig

    @property
    def ca_path(self) -> Path:
        """The authority that signed the API server's certificate, PEM."""
        return self.directory / "ca.crt"

    def pid(self, name: str) -> int:
        """The process id of a component, such as `kube-apiserver`. Raises KeyError where it does not run."""
        return self._children[name].pid

    def __enter__(self) -> Self:
        """Start every component and wait until each is ready; raises ControlPlaneError."""
        try:
            self._write_certificates()
            for name in self.programs:
                self._start(name)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop everything."""
        self.stop()

    def stop(self) -> None:
        """Kill every component, clients first, and remove the folder if it was made here. May be called twice."""
        for name in reversed(self._children):
            self._children[name].stop(grace_s=0)  # the data goes away with it: nothing to shut down in order
        self._children.clear()
        if self._own_directory:
            shutil.rmtree(self.directory, ignore_errors=True)

    def prepare(self) -> None:
        """Write certificates and kubeconfigs where they are missing: for a caller that runs the programs itself."""
        if not self.kubeconfig.exists():
            self._write_certificates()

    @property
    def programs(self) -> list[str]:
        """The programs in the order in which they start, each when the one before is ready."""
        return ["etcd", "kube-apiserver", *self._optional]

    def command(self, name: str) -> list[str]:
        """Return the command line of a program. Raises ControlPlaneError where it is not installed."""
        if name == "etcd":
            arguments = self._etcd_arguments()
        elif name == "kube-apiserver":
            arguments = self._apiserver_arguments()
        else:
            arguments = self._client_component_arguments(name)
        gates = ",".join(f"{gate}={str(on).lower()}" for gate, on in self._feature_gates.items())
        command = [str(self._binaries / name), *arguments]
        if gates and name != "etcd":
            command.append(f"--feature-gates={gates}")
        command += self._extra_args.get(name, ())
        if not (self._binaries / name).exists():
            raise ControlPlaneError(f"{self._binaries} has no {name}")
        return command

    def is_ready(self, name: str) -> bool:
        """Return whether a program answers that it is ready."""
        if name == "etcd":
            tls = ssl.create_default_context(cafile=self.directory / "etcd-ca.crt")
            tls.load_cert_chain(self.directory / "etcd-client.crt", self.directory / "etcd-client.key")
            return _answers(self._ports["etcd"], "/health", tls)
        return self._answers(self._ports[name], "/readyz" if name == "kube-apiserver" else "/healthz")

    def start_apiserver(self) -> None:
        """Start kube-apiserver on its port, always the same one, and wait until it is ready."""
        self._start("kube-apiserver")

    def _apiserver_arguments(self) -> list[str]:
        pki = self.directory
        arguments = [
            f"--secure-port={self._port}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            "--endpoint-reconciler-type=none",  # the API server refuses a loopback address as an endpoint
            f"--etcd-servers={self._etcd_url}",
            f"--etcd-cafile={pki / 'etcd-ca.crt'}",
            f"--etcd-certfile={pki / 'etcd-client.crt'}",
            f"--etcd-keyfile={pki / 'etcd-client.key'}",
            f"--tls-cert-file={pki / 'apiserver.crt'}",
            f"--tls-private-key-file={pki / 'apiserver.key'}",
            f"--client-ca-file={pki / 'ca.crt'}",
            f"--kubelet-client-certificate={pki / 'kubelet-client.crt'}",
            f"--kubelet-client-key={pki / 'kubelet-client.key'}",
            "--kubelet-preferred-address-types=InternalIP,Hostname",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={pki / 'service-accounts.pub'}",
            f"--service-account-signing-key-file={pki / 'service-accounts.key'}",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--authorization-mode=RBAC",
            "--allow-privileged=true",
        ]
        if self._runtime_config:
            pairs = ",".join(f"{name}={str(on).lower()}" for name, on in self._runtime_config.items())
            arguments.append(f"--runtime-config={pairs}")
        return arguments

    def stop_apiserver(self, *, grace_s: float = 2.0) -> None:
        """Stop kube-apiserver: new connections are refused at once, open watches are cut after `grace_s` seconds."""
        self._children.pop("kube-apiserver").stop(grace_s)

    def stop_etcd(self, *, grace_s: float = 2.0) -> None:
        """Stop etcd, for instance to put another state in its place below `directory`."""
        self._children.pop("etcd").stop(grace_s)

    def start_etcd(self) -> None:
        """Start etcd on its port, always the same one, and wait until it is healthy."""
        self._start("etcd")

    def _etcd_arguments(self) -> list[str]:
        peer_url = f"https://127.0.0.1:{self._ports['etcd-peer']}"
        pki = self.directory
        return [
            "--name=muster",
            f"--data-dir={self.directory / 'etcd'}",
            f"--listen-client-urls={self._etcd_url}",
            f"--advertise-client-urls={self._etcd_url}",
            f"--listen-peer-urls={peer_url}",
            f"--initial-advertise-peer-urls={peer_url}",
            f"--initial-cluster=muster={peer_url}",
            *([] if self._durable else ["--unsafe-no-fsync"]),
            "--quota-backend-bytes=8589934592",
            "--auto-compaction-retention=0",  # kube-apiserver compacts
            "--log-level=warn",
            *(
                argument
                for prefix in ("", "peer-")
                for argument in (
                    f"--{prefix}cert-file={pki / 'etcd.crt'}",
                    f"--{prefix}key-file={pki / 'etcd.key'}",
                    f"--{prefix}trusted-ca-file={pki / 'etcd-ca.crt'}",
                    f"--{prefix}client-cert-auth",
                )
            ),
        ]

    def _client_component_arguments(self, name: str) -> list[str]:
        kubeconfig = self.directory / f"{name}.kubeconfig"
        arguments = [
            f"--kubeconfig={kubeconfig}",
            f"--authentication-kubeconfig={kubeconfig}",
            f"--authorization-kubeconfig={kubeconfig}",
            "--bind-address=127.0.0.1",
            f"--secure-port={self._ports[name]}",
            f"--tls-cert-file={self.directory / 'apiserver.crt'}",
            f"--tls-private-key-file={self.directory / 'apiserver.key'}",
            "--leader-elect=false",
        ]
        if name == "kube-controller-manager":
            arguments += [
                "--use-service-account-credentials=true",
                f"--service-account-private-key-file={self.directory / 'service-accounts.key'}",
                f"--root-ca-file={self.ca_path}",
            ]
        return arguments

    def _start(self, name: str) -> None:
        """Start a program and wait until it is ready."""
        child = self._children[name] = Child(self.command(name), self.directory / f"{name}.log")
        deadline = time.monotonic() + self._timeout_s
        while not self.is_ready(name):
            if child.exit_code is not None:
                raise ControlPlaneError(f"{child.name} exited with {child.exit_code}:\n{child.log_tail()}")
            if time.monotonic() > deadline:
                raise ControlPlaneError(f"{child.name} was not ready within {self._timeout_s:g} s:\n{child.log_tail()}")
            time.sleep(0.2)  # while it starts, each answer costs it and us CPU that it could start with

    def _answers(self, port: int, path: str) -> bool:
        return _answers(port, path, ssl.create_default_context(cafile=self.ca_path))

    def _write_certificates(self) -> None:
        authority = CertificateAuthority.create("muster-controlplane")
        etcd_authority = CertificateAuthority.create("muster-controlplane-etcd")
        local = ("127.0.0.1", "localhost")
        server = authority.issue_server("kube-apiserver", (*local, "kubernetes.default.svc", "10.0.0.1"))
        self.ca_path.write_bytes(authority.certificate)
        (self.directory / "etcd-ca.crt").write_bytes(etcd_authority.certificate)
        self._write_pair("apiserver", server)
        self._write_pair("etcd", etcd_authority.issue_peer("etcd", local))
        self._write_pair("etcd-client", etcd_authority.issue_client("kube-apiserver"))
        self._write_pair("kubelet-client", authority.issue_client("kube-apiserver-kubelet-client"))
        private, public = new_signing_key()
        write_private(self.directory / "service-accounts.key", private)
        (self.directory / "service-accounts.pub").write_bytes(public)
        cluster = {"server": self.url, "certificate-authority-data": inline(authority.certificate)}
        # The first administrator is in a built-in group, because no role exists yet. The names of the two components
        # have their roles from kube-apiserver's own bootstrap policy.
        for file, user, groups in (
            ("admin", "muster-admin", ("system:masters",)),
            ("kube-controller-manager", "system:kube-controller-manager", ()),
            ("kube-scheduler", "system:kube-scheduler", ()),
        ):
            pair = authority.issue_client(user, groups)
            credentials = {"client-certificate-data": inline(pair.certificate), "client-key-data": inline(pair.key)}
            write_kubeconfig(self.directory / f"{file}.kubeconfig", cluster, user, credentials)

    def _write_pair(self, name: str, pair: KeyPair) -> None:
        pair.write(self.directory / f"{name}.crt", self.directory / f"{name}.key")


def _answers(port: int, path: str, tls: ssl.SSLContext) -> bool:
    """Returns whether a GET of `path` on this machine is answered with 200."""
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=5, context=tls)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
