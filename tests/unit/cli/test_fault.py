"""`muster fault` says why a fault cannot be made."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from aiohttp import web

from muster.cli.errors import CliError
from muster.cli.local.fault import kill_rank
from muster.cli.target import Cluster
from muster.embedded.layout import Layout
from muster.kube.connection.config import load_config
from tests.support import onejob


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_rank_of_a_job_that_has_ended_is_refused_with_the_phase(tmp_path: Path, phase: str) -> None:
    """The message was that no rank runs in that pod now, as in a job that begins."""

    async def answer(request: web.Request) -> web.Response:
        if request.path == onejob.JOB:
            return web.json_response(onejob.job(phase=phase, attempt=1))
        return web.json_response(onejob.pods(onejob.pod(1, phase, {"terminated": {"exitCode": 0}})))

    with onejob.served(answer) as server:
        config = load_config(onejob.write_kubeconfig(tmp_path, server))
        found = Cluster(config, "default", "a test's server", None)
        with pytest.raises(CliError, match=rf"^job 'train' has ended \({phase}\)$"):
            asyncio.run(kill_rank(found, Layout(tmp_path), "train", 0))
