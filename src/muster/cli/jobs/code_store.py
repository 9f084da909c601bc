"""Stores the packed working folder where workers can read it: a ConfigMap, a shared folder or a bucket."""

from __future__ import annotations

import base64
import os
import secrets
import shutil
import tarfile
import tempfile
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from muster.api.names import LABEL_GANG, LABEL_MANAGED_BY, MANAGED_BY
from muster.cli.errors import BadInput, CliError
from muster.cli.jobs.archive import Archive

CONFIG_MAP_BYTES_MAX = 900_000
"""An object may hold 1.5 MB in etcd, and a ConfigMap 1 MiB (Kubernetes docs, "ConfigMaps"); base64 adds a third."""
ARCHIVE_KEY = "code.tar.gz"
_URL_VALID_S = 7 * 24 * 3600  # the longest time that S3 allows (Amazon S3 User Guide, "presigned URLs")


def config_map(job: str, namespace: str, archive: Archive) -> dict[str, Any]:
    """Return the ConfigMap that holds an archive. Raises BadInput if the archive is too large."""
    if len(archive.data) > CONFIG_MAP_BYTES_MAX:
        largest = ", ".join(f"{name} ({size / 1e6:.1f} MB)" for name, size in archive.largest)
        raise BadInput(
            f"the code is {len(archive.data) / 1e6:.1f} MB packed ({archive.files} files), and at most "
            f"{CONFIG_MAP_BYTES_MAX / 1e6:.1f} MB travel through the cluster itself; the largest files: {largest}",
            "leave data out with a .musterignore, ship a smaller folder with --code DIR, or use --code-store with a "
            "folder that all nodes share (/shared/code) or a bucket (s3://BUCKET/PREFIX)",
        )
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": f"{job}-code-{secrets.token_hex(3)}",
            "namespace": namespace,
            "labels": {LABEL_MANAGED_BY: MANAGED_BY, LABEL_GANG: job},
        },
        "immutable": True,
        "binaryData": {ARCHIVE_KEY: base64.b64encode(archive.data).decode()},
    }


def put_in_folder(store: str, archive: Archive, spec: dict[str, Any]) -> None:
    """Unpack into a folder that every node mounts at the same path, and make the job start there.

    The name of the archive's folder is its digest, and the folder appears in one step. So jobs can share it.
    """
    check_store(store)
    root = Path(store.removeprefix("file://"))
    folder = root / archive.sha256[:16]
    if not folder.exists():
        partial = Path(tempfile.mkdtemp(dir=root, prefix=".muster-"))
        try:
            with tarfile.open(fileobj=BytesIO(archive.data)) as tar:
                tar.extractall(partial, filter="data")
            partial.chmod(0o755)
            os.rename(partial, folder)
        except OSError as error:
            shutil.rmtree(partial, ignore_errors=True)
            if not folder.is_dir():  # another process may have stored the same archive first
                raise CliError(f"cannot write to {root}: {error.strerror}") from None
    spec["workingDir"] = str(folder)
    pod = spec.setdefault("template", {}).setdefault("spec", {})
    pod.setdefault("volumes", []).append({"name": "code-store", "hostPath": {"path": str(root), "type": "Directory"}})
    containers = pod.setdefault("containers", [])
    worker = next((each for each in containers if each.get("name") == "worker"), None)
    if worker is None:
        worker = {"name": "worker"}
        containers.append(worker)
    worker.setdefault("volumeMounts", []).append({"name": "code-store", "mountPath": str(root), "readOnly": True})


def put_in_bucket(store: str, archive: Archive, spec: dict[str, Any]) -> None:
    """Upload to S3 or a compatible server (AWS_ENDPOINT_URL), and sign a URL, so that workers need no credentials."""
    try:
        import boto3
        from botocore.config import Config
    except ImportError:
        raise BadInput("--code-store s3://... needs boto3", "pip install 'muster[s3]'") from None
    check_store(store)
    address = urlsplit(store)
    key = f"{address.path.strip('/')}/{archive.sha256}.tar.gz".lstrip("/")
    try:
        # Newer regions accept only signature version 4; in the oldest region, boto3 would use version 2.
        client = boto3.client("s3", config=Config(signature_version="s3v4", connect_timeout=10, read_timeout=60))
        client.put_object(Bucket=address.netloc, Key=key, Body=archive.data)
        url = client.generate_presigned_url(
            "get_object", Params={"Bucket": address.netloc, "Key": key}, ExpiresIn=_URL_VALID_S
        )
    except Exception as error:  # boto3 creates its exceptions at run time; the hint is the same for all of them
        raise CliError(f"cannot upload the code to {store}: {error}", "check AWS credentials and the bucket") from None
    spec["code"] = {"url": url, "sha256": archive.sha256}


def check_store(store: str) -> None:
    """Check the store before packing. Raises BadInput."""
    if store in ("", "configmap"):
        return
    if store.startswith("s3://"):
        if not urlsplit(store).netloc:
            raise BadInput(f"--code-store {store} names no bucket", "write s3://BUCKET/PREFIX")
        return
    root = Path(store.removeprefix("file://"))
    if not root.is_absolute() or not _is_folder(root):
        raise BadInput(f"--code-store {store} is not a folder here", "name one that this machine and all nodes mount")


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):  # the system accepts no file of this name
        return False


def deliver(store: str, archive: Archive, job: str, namespace: str, spec: dict[str, Any]) -> dict[str, Any] | None:
    """Store the archive and set `spec.code`. Returns the ConfigMap to create, or None for another store."""
    if store in ("", "configmap"):
        manifest = config_map(job, namespace, archive)
        spec["code"] = {"configMap": manifest["metadata"]["name"]}
        return manifest
    if store.startswith("s3://"):
        put_in_bucket(store, archive, spec)
    else:
        put_in_folder(store, archive, spec)
    return None
