"""Buckets in moto's server, and folders of credentials as a mounted Secret has them."""

from __future__ import annotations

import itertools
import urllib.request
from pathlib import Path

from muster.sdk.data.access import Access

_numbers = itertools.count(1)


def new_bucket(server: str, region: str = "us-east-1") -> str:
    """Create an empty bucket and return its name. The server does not check signatures."""
    name = f"bucket-{next(_numbers)}"
    body = b""
    if region != "us-east-1":
        place = f"<LocationConstraint>{region}</LocationConstraint>"
        body = f"<CreateBucketConfiguration>{place}</CreateBucketConfiguration>".encode()
    request = urllib.request.Request(f"{server}/{name}", data=body, method="PUT")
    request.add_header("Authorization", f"AWS4-HMAC-SHA256 Credential=k/20260101/{region}/s3/aws4_request")
    urllib.request.urlopen(request, timeout=10).close()
    return name


def secret_folder(folder: Path, **values: str) -> str:
    """Write files as the kubelet mounts a Secret, by default an access key of S3, and return the folder's path."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in (values or {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}).items():
        temporary = folder / f".{name}"
        temporary.write_text(value)
        temporary.replace(folder / name)
    return str(folder)


def s3_access(endpoint: str, folder: Path, region: str = "us-east-1") -> Access:
    """Access with an access key in a folder."""
    return Access(endpoint, region, secret_folder(folder))
