"""`muster demo`: a job loses a rank, then a node, and still succeeds."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from muster.cli.errors import CliError, ExitCode
from muster.cli.local.up import translated, waiting
from muster.cli.output import note

_TAIL_LINES = 15
_INSTALL = "pip install mpi4py mpich numpy scikit-learn"

if TYPE_CHECKING:
    from muster.api.training_job import TrainingJob
    from muster.cli.jobs.follow import JobView
    from muster.cli.local.arena import Arena
    from muster.kube.client import Client

NODES, SLOTS, GPUS = 5, 4, 8
STEPS, STEP_TIME_S, CHECKPOINT_EVERY = 120, 0.12, 20
KILL_AT, VANISH_AT = 0.3, 0.6
BETWEEN = (0.25, 0.65)
"""Share of the steps between two checkpoints after which a fault happens, so that some steps are repeated."""
PATIENCE = 0.3
"""If the demo misses that moment, the fault happens at the latest after this additional share of all steps."""
PICTURE_EVERY_S = 0.4
KILLED_SLOT, VANISHED_SLOT = 1, 2
DEADLINE_S = 240.0
JOB, NAMESPACE = "digits", "default"
ACCURACY_MIN = 0.9
LOSS_TOLERANCE = 1e-9
"""One process adds up gradients in another order than four, which rounds differently: by about 1e-15. A step that is
missing or counts twice changes the loss by more than 1e-3."""
UNINTERRUPTED_S = 60.0
THREADS = {"OPENBLAS_NUM_THREADS": "1"}
"""Four ranks share the CPUs of this machine."""
WHAT = ("a rank was killed", "a node vanished")


@click.command()
@click.option("--real", is_flag=True, help="On a real control plane: kube-apiserver, etcd and kube-controller-manager.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
def command(real: bool, as_json: bool) -> int:
    """Train digits on four nodes; kill a rank, then take a node away; see the job succeed.

    Everything runs on this machine, in a temporary folder, and is removed at the end.
    """
    from muster.cli.local.arena import EmbeddedArena, example

    for module in ("mpi4py", "numpy", "sklearn"):
        if importlib.util.find_spec(module) is None:
            raise CliError(f"the demo trains with {module}, which is not installed", _INSTALL)
    code = example("digits")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM cleans up too
    started = time.monotonic()
    with waiting("starting a cluster of five nodes") as on_stage, translated():
        arena: Arena
        if real:
            from muster.cli.local.real_arena import RealArena

            arena = RealArena(NODES, GPUS, on_stage)
        else:
            arena = EmbeddedArena(NODES, GPUS, on_stage)
        arena.__enter__()
    try:
        story = Story(arena, time.monotonic() - started)
        asyncio.run(story.run(code, as_json))
        summary = story.summary(uninterrupted_loss(code), time.monotonic() - started)
        kept = [] if summary["promises"]["all"] else log_tails(arena)
    finally:
        with translated():
            arena.__exit__(None, None, None)
    if as_json:
        click.echo(json.dumps(summary))
    else:
        from muster.cli.local.demo_summary import print_summary

        print_summary(summary, SLOTS)
    for line in kept:
        note(line)
    return ExitCode.DONE if summary["promises"]["all"] else ExitCode.FAILED


def uninterrupted_loss(code: Path) -> float | None:
    """Train the same in one process outside of the cluster; returns the loss at the end, None if it failed."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("MUSTER_")}
    command = [sys.executable, str(code / "train.py"), f"--steps={STEPS}", "--checkpoint-every=0"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, env={**env, **THREADS}, timeout=UNINTERRUPTED_S, check=False
        )
    except subprocess.TimeoutExpired:
        return None
    found = re.search(r"^final step \d+ loss (\S+)", done.stdout, re.MULTILINE)
    return float(found[1]) if found else None


class Story:
    """The events of the demo, and the facts recorded about them."""

    def __init__(self, arena: Arena, start_s: float) -> None:
        """Nothing has happened yet."""
        self.arena = arena
        self.start_s = start_s
        self.nodes: list[dict[int, str]] = []
        self.kept: list[int] = []
        self.killed = ""
        self.vanished = ""
        self.job: TrainingJob | None = None

    async def run(self, code: Path, stdout_is_data: bool) -> None:
        """Submit the job, cause the faults, and wait for its end. Raises CliError after DEADLINE_S seconds."""
        from muster.cli.jobs.follow import JobView

        async with self.arena.cluster().client() as client:
            with JobView(stdout_is_data=stdout_is_data) as view:
                view.say(f"the cluster is ready after {self.start_s:.1f}s: {NODES} nodes with {GPUS} GPUs each")
                try:
                    async with asyncio.timeout(DEADLINE_S):
                        await self._submit(client, code)
                        drawing = asyncio.create_task(self._draw(client, view))
                        try:
                            await self._watch(client, view)
                        finally:
                            drawing.cancel()
                            await asyncio.gather(drawing, return_exceptions=True)
                except TimeoutError:
                    view.say(f"the job did not end within {DEADLINE_S:.0f}s")

    async def _submit(self, client: Client, code: Path) -> None:
        from muster.cli.jobs import manifest as manifests
        from muster.cli.jobs.archive import pack
        from muster.cli.jobs.code_store import deliver
        from muster.cli.jobs.submit import submit
        from muster.embedded.programs import THIS_MACHINE

        manifest = manifests.new_manifest(JOB, NAMESPACE)
        manifest["spec"] = {
            "replicas": SLOTS,
            "gpusPerNode": GPUS,
            "ranksPerNode": 1,
            "launcher": "mpi",
            "image": THIS_MACHINE,
            "command": ["python3", "train.py"],
            "args": [f"--steps={STEPS}", f"--step-time-s={STEP_TIME_S}", f"--checkpoint-every={CHECKPOINT_EVERY}"],
            "env": [{"name": name, "value": value} for name, value in THREADS.items()],
            "checkpoint": self.arena.checkpoints(),
            "stopGraceSeconds": 2,
        }
        config_map = deliver("", pack(code), JOB, NAMESPACE, manifest["spec"])
        await submit(client, manifests.checked(manifest), config_map)

    async def _watch(self, client: Client, view: JobView) -> None:
        from muster.cli.jobs import describe
        from muster.cli.jobs.watch import job_states

        attempt = 0
        async for job in job_states(client, NAMESPACE, JOB):
            self.job = job
            view.show(job)
            if describe.finished(job):
                return
            if job.status.phase == "Running" and job.status.attempt != attempt:
                attempt = job.status.attempt
                await self._remember(client, view)
            await self._break(client, job, view)

    async def _draw(self, client: Client, view: JobView) -> None:
        """Keeps the picture of slots and nodes up to date on a live display."""
        from muster.cli.jobs.pods import members
        from muster.cli.jobs.slot_picture import cells, picture
        from muster.kube.errors import ApiError
        from muster.kube.objects.node import Node

        while view.live:
            if self.job is not None:
                with contextlib.suppress(ApiError):
                    pods, nodes = await asyncio.gather(members(client, self.job), client.list(Node))
                    view.below(picture(cells(self.job, pods, nodes.items), view.width))
            await asyncio.sleep(PICTURE_EVERY_S)

    async def _remember(self, client: Client, view: JobView) -> None:
        """Record the nodes of the slots in this attempt, and report which slots moved."""
        from muster.cli.jobs.pods import members, slot_of

        assert self.job is not None
        pods = [pod for pod in await members(client, self.job) if pod.metadata.deletion_timestamp is None]
        nodes = {slot_of(pod): pod.spec.node_name for pod in pods}
        if self.nodes:
            moved = {slot: node for slot, node in nodes.items() if self.nodes[-1].get(slot) != node}
            self.kept.append(SLOTS - len(moved))
            for slot, node in moved.items():
                view.say(f"slot {slot} moved from {self.nodes[-1].get(slot)} to {node}")
        self.nodes.append(nodes)

    async def _break(self, client: Client, job: TrainingJob, view: JobView) -> None:
        from muster.cli.jobs import describe
        from muster.cli.jobs.pods import members, pod_of_slot

        step = job.status.progress.step if job.status.progress else 0
        recovered = all(describe.time_to_useful_s(fault) is not None for fault in job.status.faults)
        if job.status.phase != "Running" or not recovered or job.status.last_checkpoint is None:
            return
        since = (step - job.status.last_checkpoint.step) / CHECKPOINT_EVERY
        between = BETWEEN[0] <= since <= BETWEEN[1]

        def due(moment: float) -> bool:
            return step / STEPS >= (moment if between else moment + PATIENCE)

        if not self.killed and due(KILL_AT):
            pod = pod_of_slot(job, await members(client, job), KILLED_SLOT)
            rank = await asyncio.to_thread(self.arena.kill_rank, pod.uid)
            self.killed = pod.spec.node_name
            view.say(f">>> killed rank {rank} on {self.killed} (SIGKILL)")
        elif self.killed and not self.vanished and due(VANISH_AT) and len(job.status.faults) == 1:
            pod = pod_of_slot(job, await members(client, job), VANISHED_SLOT)
            self.vanished = pod.spec.node_name
            view.say(f">>> {self.vanished} vanishes: its kubelet and every process on it")
            await asyncio.to_thread(self.arena.vanish, self.vanished)

    def summary(self, expected_loss: float | None, total_s: float) -> dict[str, Any]:
        """Returns the results, and whether the demo went as expected.

        Args:
            expected_loss: the loss of the same training without faults; None if it is not known.
            total_s: duration of the demo.
        """
        from muster.cli.jobs import describe

        status = self.job.status if self.job else None
        faults = status.faults if status else ()
        metrics = status.progress.metrics if status and status.progress else {}
        useful = [describe.time_to_useful_s(fault) for fault in faults]
        promises = {
            "succeeded": bool(status) and status.phase == "Succeeded" if status else False,
            "learned": metrics.get("accuracy", 0.0) >= ACCURACY_MIN,
            "rank_killed_all_slots_kept": self.kept[:1] == [SLOTS],
            "node_vanished_other_slots_kept": self.kept[1:] == [SLOTS - 1],
            "left_the_vanished_node": bool(self.vanished) and self.vanished not in (self.nodes or [{}])[-1].values(),
            "two_restarts": len(faults) == 2,
            "useful_again_after_each": bool(useful) and None not in useful,
            "same_loss_as_uninterrupted": expected_loss is not None
            and math.isclose(metrics.get("loss", math.nan), expected_loss, rel_tol=LOSS_TOLERANCE),
        }
        return {
            "phase": status.phase if status else "",
            "message": status.message if status else "",
            "accuracy": metrics.get("accuracy"),
            "loss": metrics.get("loss"),
            "steps": STEPS,
            "restarts": len(faults),
            "steps_lost": sum(fault.steps_lost or 0 for fault in faults),
            "slots_kept": self.kept,
            "faults": [
                {
                    "attempt": fault.attempt,
                    "slot": fault.slot,
                    "node": fault.node,
                    "cause": fault.cause,
                    "rule": fault.rule,
                    "what": what,
                    "steps_lost": fault.steps_lost,
                    "time_to_useful_s": describe.time_to_useful_s(fault),
                    "stages_s": dict(describe.stages(fault.timeline)),
                }
                for fault, what in zip(faults, (*WHAT, *[""] * len(faults)), strict=False)
            ],
            "start_s": self.start_s,
            "total_s": total_s,
            "promises": {**promises, "all": all(promises.values())},
        }


def log_tails(arena: Arena) -> list[str]:
    """The last lines of every log, for a demo that did not go as expected."""
    kept = []
    for path in arena.logs():
        tail = path.read_text(errors="replace").splitlines()[-_TAIL_LINES:]
        kept += [f"--- {path.name}", *tail] if tail else []
    return kept
