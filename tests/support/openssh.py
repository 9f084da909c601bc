"""OpenSSH's server and client, which Debian packages and this project does not bring."""

from __future__ import annotations

import os
import shutil

import pytest

from muster.trainingjobs.supervisor.remoteshell.sshd import FOLDERS


def require_openssh() -> None:
    """Skip the test where sshd or ssh is missing; fail it with MUSTER_REQUIRE_REAL=1."""
    path = os.pathsep.join((os.environ["PATH"], *FOLDERS))
    missing = ", ".join(name for name in ("sshd", "ssh") if shutil.which(name, path=path) is None)
    if missing and os.environ.get("MUSTER_REQUIRE_REAL") == "1":
        pytest.fail(f"MUSTER_REQUIRE_REAL=1 and no {missing}: run tools/ci-packages", pytrace=False)
    if missing:
        pytest.skip(f"no {missing}: Debian's openssh-server and openssh-client (tools/ci-packages)")
