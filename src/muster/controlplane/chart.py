"""The Helm chart's objects, as helm itself renders them."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from muster.controlplane.goprograms import NotBuiltError, find_built

CHART: Final = Path(__file__).parents[3] / "deploy" / "chart" / "muster"
_TIMEOUT_S: Final = 60.0


def rendered(
    templates: Sequence[str], *, namespace: str, build: bool = True, values: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """The objects of some of the chart's templates, such as `rbac`, with its default values but for NAME=VALUE.

    Raises:
        NotBuiltError: helm is missing, and cannot be built (or `build` does not allow it), or it refuses the chart.
    """
    helm = find_built("helm", build=build) / "helm"
    shown = [f"--show-only=templates/{template}.yaml" for template in templates]
    with tempfile.TemporaryDirectory(prefix="muster-helm-") as home:
        done = subprocess.run(
            [
                str(helm),
                "template",
                "muster",
                str(CHART),
                "--namespace",
                namespace,
                *shown,
                *(f"--set={value}" for value in values),
            ],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
            env={"PATH": os.environ.get("PATH", os.defpath), "HOME": home, "KUBECONFIG": os.devnull},
        )
    if done.returncode:
        raise NotBuiltError(f"helm does not render {CHART}: {done.stderr.strip()}")
    return [each for each in yaml.safe_load_all(done.stdout) if each]
