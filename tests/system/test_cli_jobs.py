"""Jobs through the command line, on an embedded cluster with real processes."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.kubectl import kubectl_program
from tests.support.musterprogram import MUSTER, Muster, exit_code, muster_in
from tests.support.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

NODES = 3
HELLO = "import os\nprint('hello from rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])\n"
BOOM = "import sys\nprint('about to fail', file=sys.stderr)\nraise ValueError('boom at step 7')\n"
SLEEP = "import time\nprint('sleeping', flush=True)\ntime.sleep(600)\n"
SECOND_TIME = (
    "import os, sys\nprint('in attempt', os.environ['MUSTER_ATTEMPT'], flush=True)\n"
    "sys.exit(int(os.environ['MUSTER_ATTEMPT']) == 1)\n"
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Muster]:
    with muster_in(tmp_path_factory.mktemp("cli") / "home") as muster:
        muster.ok("up", "--nodes", str(NODES), "--gpus", "2")
        yield muster


@pytest.fixture
def muster(cluster: Muster, tmp_path: Path) -> Iterator[Muster]:
    """The cluster, with a working folder of its own and no jobs of earlier tests."""
    folder = tmp_path / "work"
    folder.mkdir()
    for name, text in {"hello": HELLO, "boom": BOOM, "sleep": SLEEP, "second": SECOND_TIME}.items():
        (folder / f"{name}.py").write_text(text)
    cluster.work = folder
    yield cluster
    names = [job["metadata"]["name"] for job in cluster.json("list")["items"]]
    if names:
        cluster.ok("delete", *names)


def run(muster: Muster, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return muster.run("run", *arguments, "--launcher", "none", **options)


def phase(muster: Muster, name: str) -> str:
    return str(muster.json("status", name)["status"]["phase"])


def config_maps(muster: Muster) -> list[str]:
    done = muster.run(
        "get", "configmaps", "-l", "muster.dev/managed-by=muster", "-o", "name", program=kubectl_program()
    )
    return done.stdout.split()


def test_a_script_runs_and_leaves_nothing_once_it_is_deleted(muster: Muster) -> None:
    done = run(muster, "hello.py", "--name", "hello", "--nodes", "2", "--wait")
    assert done.returncode == 0, done
    assert "created on the embedded cluster 'embedded' on this machine, namespace default: 2 nodes" in done.stderr
    assert "no room" not in done.stderr
    lines = muster.ok("logs", "hello").splitlines()
    assert "[0] hello from rank 0 of 2" in lines
    assert "[1] hello from rank 1 of 2" in lines
    assert all(re.match(r"\[[01]\] ", line) for line in lines)
    assert not any(line.startswith("[0]") for line in muster.ok("logs", "hello", "--slot", "1").splitlines())
    assert "hello from rank 1" in muster.ok("logs", "hello", "--rank", "1")
    assert muster.ok("logs", "hello", "--attempt", "1", "--tail", "1", "--slot", "0").count("\n") == 1
    listed = muster.ok("list").splitlines()
    assert listed[0].split()[:3] == ["NAME", "PHASE", "NODES"]
    assert listed[1].split()[:3] == ["hello", "Succeeded", "2"]
    assert "LAUNCHER" in muster.ok("list", "-o", "wide")
    shown = muster.ok("status", "hello")
    assert "Succeeded" in shown
    assert "muster delete hello" in shown
    assert len(config_maps(muster)) == 1
    muster.ok("delete", "hello")
    assert muster.json("list")["items"] == []
    eventually("the code's ConfigMap collected with its owner", lambda: not config_maps(muster))


@pytest.mark.parametrize("how", ["--wait", "--follow"])
def test_scripts_that_wait_get_the_job_as_it_ended(muster: Muster, how: str) -> None:
    done = run(muster, "hello.py", how, "-o", "json")
    assert done.returncode == 0, done
    ended = json.loads(done.stdout)
    assert ended["status"]["phase"] == "Succeeded"
    assert "created on" in done.stderr
    followed = muster.run("status", ended["metadata"]["name"], "--follow", "-o", "json")
    assert (followed.returncode, json.loads(followed.stdout)["status"]["phase"]) == (0, "Succeeded")


def test_a_failing_script_shows_its_last_lines_and_exits_with_1(muster: Muster) -> None:
    done = run(muster, "boom.py", "--name", "boom", "--backoff-limit", "0", "--follow")
    assert done.returncode == 1, done
    assert "ValueError: boom at step 7" in done.stderr
    assert "'boom' failed" in done.stderr
    assert "the program's fault" in done.stderr
    assert "Failed" in done.stdout
    listed = muster.ok("list").splitlines()
    assert listed[1].split()[listed[0].split().index("ATTEMPT")] == "1"
    everything = done.stdout + done.stderr + muster.ok("status", "boom")
    assert "attempt 2" not in everything
    assert "restarting" not in everything.lower()
    again = muster.run("status", "boom", "--follow")
    assert again.returncode == 1


@pytest.mark.parametrize(
    ("name", "script", "message"),
    [
        ("missing", "#!/no/such/shell\n", "/no/such/shell was not found"),
        (
            "shell",
            "#!/bin/sh\npythn train.py\n",
            "exit code 127: a command in it was not found; install it in the image",
        ),
    ],
)
def test_a_program_that_no_node_has_fails_the_job_at_once_with_the_fix(
    muster: Muster, name: str, script: str, message: str
) -> None:
    """Issue 11.24, with mpiexec on two nodes."""
    (muster.work / "train").write_text(script)
    (muster.work / "train").chmod(0o755)
    done = run(muster, "train", "--name", name, "--nodes", "2", "--wait")
    assert done.returncode == 1, done
    ended = muster.json("status", name)["status"]
    assert message in ended["message"]
    assert ended["attempt"] == 1
    assert [fault["rule"] for fault in ended["faults"]] == ["cannot-start"]


def test_a_restarted_job_keeps_its_attempts_apart(muster: Muster) -> None:
    done = run(muster, "second.py", "--name", "second", "--follow")
    assert done.returncode == 0, done
    assert "attempt 1 ended at slot 0" in done.stdout
    everything = muster.ok("logs", "second")
    assert everything.index("in attempt 1") < everything.index("in attempt 2")
    assert "in attempt 2" not in muster.ok("logs", "second", "--attempt", "1")
    assert "in attempt 1" in muster.ok("logs", "second", "--previous")
    assert "in attempt 1" not in muster.ok("logs", "second", "--attempt", "2")
    assert "Fault" in muster.ok("status", "second")


@pytest.mark.mpi
def test_logs_of_mpi_ranks_come_from_where_they_run(muster: Muster) -> None:
    (muster.work / "ranks.py").write_text(
        "from mpi4py import MPI\nworld = MPI.COMM_WORLD\nprint('this is', world.rank, 'of', world.size, flush=True)\n"
    )
    done = muster.run("run", "ranks.py", "--nodes", "2", "--gpus", "2", "--wait")
    assert done.returncode == 0, done
    for rank in range(4):
        said = muster.ok("logs", "ranks", "--rank", str(rank)).splitlines()
        assert [line for line in said if "this is" in line] == [f"[{rank // 2}] [rank {rank}] this is {rank} of 4"]
        assert sum("over on this node" in line for line in said) == 1
    at_slot = muster.ok("logs", "ranks", "--slot", "1", "--attempt", "1")
    assert "[1] [rank 3] this is 3 of 4" in at_slot
    assert "[rank 0]" not in at_slot
    assert muster.run("logs", "ranks", "--rank", "4").returncode == 2


def test_ctrl_c_while_following_leaves_the_job_running(muster: Muster) -> None:
    following = muster.start("run", "sleep.py", "--name", "long", "--launcher", "none", "--follow")
    eventually("it follows", lambda: "sleeping" in following.log.read_text())
    os.kill(following.pid, signal.SIGINT)
    assert exit_code(following) == 130
    said = following.log.read_text()
    assert "'long' continues" in said
    assert "muster stop long" in said
    assert phase(muster, "long") == "Running"
    muster.ok("stop", "long", "--wait")
    assert phase(muster, "long") == "Suspended"
    assert "'long' continues from the beginning: it has no checkpoint" in muster.run("resume", "long", "--wait").stderr
    assert phase(muster, "long") == "Running"
    muster.ok("stop", "long")
    muster.ok("delete", "long")


def test_following_logs_until_the_end(muster: Muster) -> None:
    (muster.work / "steps.py").write_text(
        "import time\nfor step in range(5):\n    print('step', step, flush=True)\n    time.sleep(0.3)\n"
    )
    assert run(muster, "steps.py", "--name", "steps").returncode == 0
    said = muster.ok("logs", "steps", "-f")
    assert [line for line in said.splitlines() if "step " in line] == [f"[0] step {step}" for step in range(5)]


def test_run_follow_shows_what_the_ranks_write_before_how_the_job_ended(muster: Muster) -> None:
    """Issue 11.22: `--follow` hid the program's output. Issue 11.11: its control bytes do not act."""
    (muster.work / "says.py").write_text(
        "for step in range(200):\n    print('step', step)\n"
        "print('\\x1b]0;title\\x07 \\x1b[31mred\\x1b[0m \\u202eabc')\n"
    )
    done = run(muster, "says.py", "--name", "says", "-N", "2", "--follow")
    assert done.returncode == 0, done
    for slot in range(2):
        mine = [line for line in done.stdout.splitlines() if line.startswith(f"[{slot}] ")]
        assert [line for line in mine if "step" in line] == [f"[{slot}] step {step}" for step in range(200)]
        assert rf"[{slot}] \x1b]0;title\x07 red \u202eabc" in mine
    assert "Succeeded" in done.stdout.splitlines()[-1]
    as_data = run(muster, "says.py", "--name", "says-data", "--follow", "-o", "json")
    assert json.loads(as_data.stdout)["status"]["phase"] == "Succeeded"
    assert "[0] step 199" in as_data.stderr


def test_ctrl_c_while_following_logs_says_that_the_job_continues(muster: Muster) -> None:
    assert run(muster, "sleep.py", "--name", "slow").returncode == 0
    following = muster.start("logs", "slow", "-f")
    eventually("it follows", lambda: "sleeping" in following.log.read_text())
    os.kill(following.pid, signal.SIGINT)
    assert exit_code(following) == 130
    said = following.log.read_text()
    assert "'slow' continues" in said
    assert "watch again: muster logs slow -f; stop it: muster stop slow" in said


def test_resuming_what_is_not_stopped_is_said(muster: Muster) -> None:
    assert run(muster, "sleep.py", "--name", "slow").returncode == 0
    done = muster.run("resume", "slow")
    assert (done.returncode, done.stderr) == (0, "'slow' is not stopped: nothing to resume\n")


def test_a_name_that_is_taken_changes_nothing(muster: Muster) -> None:
    assert run(muster, "sleep.py", "--name", "taken").returncode == 0
    eventually("the code of earlier jobs is collected", lambda: len(config_maps(muster)) == 1)
    before = config_maps(muster)
    done = run(muster, "hello.py", "--name", "taken")
    assert done.returncode == 5
    assert "already" in done.stderr
    assert config_maps(muster) == before
    muster.ok("delete", "taken")
    assert muster.run("stop", "taken").returncode == 4


def test_a_job_is_named_like_its_script_while_that_is_free(muster: Muster) -> None:
    starting = [muster.start("run", "sleep.py", "--launcher", "none") for _ in range(3)]
    codes = [exit_code(each) for each in starting]
    assert codes == [0, 0, 0], [each.log.read_text() for each in starting]
    names = [job["metadata"]["name"] for job in muster.json("list")["items"]]
    assert [name for name in names if not re.fullmatch("sleep-[a-z0-9]{5}", name)] == ["sleep"]
    eventually("each job has its code, and earlier ones have none", lambda: len(config_maps(muster)) == 3)
    muster.ok("delete", "sleep")
    done = muster.run("status", "sleep")
    assert done.returncode == 4
    assert all(name in done.stderr for name in names if name != "sleep"), done


def test_exec_where_nothing_runs_says_why_and_what_to_do(muster: Muster) -> None:
    assert run(muster, "hello.py", "--name", "over", "--wait").returncode == 0
    phase_of_pod = ("get", "pod", "over-0-1", "--output=jsonpath={.status.phase}")  # which ends after its job
    eventually("its pod ends", lambda: muster.run(*phase_of_pod, program=kubectl_program()).stdout == "Succeeded")
    done = muster.run("exec", "over", "--", "true")
    assert done.returncode == 5, done
    assert "pod over-0-1 is Succeeded" in done.stderr
    assert "muster logs over" in done.stderr
    assert run(muster, "hello.py", "--name", "large", "--nodes", "9", "--gpus", "2").returncode == 0
    eventually("it has pods", lambda: "large-0-1" in muster.ok("status", "large"))
    done = muster.run("exec", "large", "--", "true")
    assert done.returncode == 5, done
    assert "waits for a node" in done.stderr
    eventually("it has all pods", lambda: "large-8-1" in muster.ok("status", "large"))
    logs = muster.run("logs", "large")
    assert (logs.returncode, logs.stderr) == (0, "9 of 9 slots have not started: Pending: waits for a node\n")
    assert muster.run("logs", "large", "--slot", "2").stderr.startswith("slot 2 has not started: ")
    assert "muster status large" in done.stderr


def test_too_much_code_creates_nothing(muster: Muster) -> None:
    (muster.work / "data.bin").write_bytes(os.urandom(1_200_000))
    done = run(muster, "hello.py", "--name", "large")
    assert done.returncode == 2
    assert "data.bin (1.2 MB)" in done.stderr
    assert "--code-store" in done.stderr
    assert muster.run("status", "large").returncode == 4
    (muster.work / ".musterignore").write_text("*.bin\n")
    assert run(muster, "hello.py", "--name", "large", "--wait").returncode == 0


def test_code_from_a_shared_folder(muster: Muster, tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    (muster.work / "data.bin").write_bytes(os.urandom(1_200_000))
    done = run(muster, "hello.py", "--name", "stored", "--code-store", str(store), "--wait")
    assert done.returncode == 0, (done, muster.ok("logs", "stored"))
    assert "hello from rank 0 of 1" in muster.ok("logs", "stored")
    eventually("no job has code in a ConfigMap", lambda: config_maps(muster) == [])


def test_exec_passes_stdin_and_the_exit_status(muster: Muster) -> None:
    assert run(muster, "sleep.py", "--name", "where", "--nodes", "2").returncode == 0
    eventually("it runs", lambda: phase(muster, "where") == "Running")
    done = muster.run("exec", "where", "--slot", "1", "--", "sh", "-c", "echo slot $MUSTER_SLOT; echo oops >&2; exit 3")
    assert (done.returncode, done.stdout, done.stderr) == (3, "slot 1\n", "oops\n")
    done = muster.run(
        "exec", "where", "--rank", "1", "--", "sh", "-c", "echo $MUSTER_SLOT $RANK $LOCAL_RANK $WORLD_SIZE"
    )
    assert (done.returncode, done.stdout) == (0, "1 1 0 2\n")
    assert muster.run("exec", "where", "--rank", "2", "--", "true").returncode == 2
    piped = muster.run("exec", "where", "--", "cat", stdin="through\nand back\n")
    assert (piped.returncode, piped.stdout) == (0, "through\nand back\n")
    assert muster.ok("exec", "where", "--slot", "1", "--", "cat", "sleep.py") == SLEEP, "it starts where the ranks do"
    reported = muster.ok(
        "exec", "where", "--slot", "1", "--", "sh", "-c", "echo $RANK of $WORLD_SIZE, ${MUSTER_ATTEMPT-none}"
    )
    assert reported == "1 of 2, none\n", "it has the numbers of a rank, and reports nothing as one"
    assert muster.run("exec", "where", "--slot", "7", "--", "true").returncode == 2


def test_exec_gives_a_shell_on_a_terminal(muster: Muster) -> None:
    assert run(muster, "sleep.py", "--name", "shell").returncode == 0
    eventually("it runs", lambda: phase(muster, "shell") == "Running")
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(MUSTER, ["muster", "exec", "shell"], muster.env)
    try:
        os.write(terminal, b"echo is-$((6*7)) tty:$(tty >/dev/null && echo yes)\n")
        assert "is-42 tty:yes" in _read_until(terminal, "is-42 tty:yes")
        os.write(terminal, b"exit 5\n")
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 5
    finally:
        os.close(terminal)


def _read_until(terminal: int, wanted: str, timeout_s: float = 30.0) -> str:
    said, deadline = "", time.monotonic() + timeout_s
    while wanted not in said and time.monotonic() < deadline:
        if select.select([terminal], [], [], 0.2)[0]:
            try:
                said += os.read(terminal, 4096).decode(errors="replace")
            except OSError:
                break
    return said


def test_a_job_too_large_for_the_cluster_is_explained(muster: Muster) -> None:
    done = run(muster, "hello.py", "--name", "huge", "--nodes", "50", "--gpus", "2")
    assert done.returncode == 0
    assert f"no room for it now: the cluster has {NODES} nodes with 2 GPUs; muster explain huge" in done.stderr
    eventually("it says where to ask", lambda: "muster explain huge" in muster.ok("status", "huge"))
    said = muster.ok("explain", "huge")

    def agree() -> bool:  # in the end: what other jobs leave behind changes both
        why = muster.ok("explain", "huge").splitlines()[0].removeprefix("default/huge: ")
        return f"waiting for 50 of 50 nodes: {why}" in muster.ok("status", "huge")

    eventually("status says what explain says", agree, 90)
    eventually("added nodes are counted", lambda: "Add 37" in muster.ok("explain", "huge", "--plus-nodes", "10"))
    assert "needs 50 nodes; the cluster has 13" in muster.ok("explain", "huge", "--plus-nodes", "10")
    assert "would be placed" in muster.ok("explain", "huge", "--plus-nodes", "50")
    assert "waiting for 50 of 50 nodes: needs 50 nodes" in muster.ok("list", "-o", "wide")
    assert "50" in said
    assert str(NODES) in said
    assert phase(muster, "huge") == "Pending"
    shown = muster.ok("get", "tj", "huge", "--no-headers", program=kubectl_program())
    assert shown.split()[:5] == ["huge", "50", "0", "Pending", "0"], "no attempt ran yet"


def test_job_whose_pods_fit_no_node_learns_what_would_fit(muster: Muster) -> None:
    assert run(muster, "hello.py", "--name", "wide", "--nodes", "1", "--gpus", "4").returncode == 0
    said = "2 nvidia.com/gpu per node and 2 times the replicas (the largest node has 2)"
    eventually("it says what fits", lambda: said in muster.ok("explain", "wide"))
    more = muster.run("explain", "wide", "--plus-nodes", "3")
    assert more.returncode == 5
    assert "more nodes like these would not help" in more.stderr


def test_a_fault_on_purpose_is_survived(muster: Muster) -> None:
    assert run(muster, "sleep.py", "--name", "hit", "--nodes", "2", "--backoff-limit", "5").returncode == 0
    eventually("it runs", lambda: phase(muster, "hit") == "Running")

    def killed() -> subprocess.CompletedProcess[str] | None:  # a job is Running before its ranks are
        done = muster.run("fault", "rank", "hit", "1")
        return None if "no rank runs" in done.stderr else done

    said = eventually("a rank is there to be killed", killed)
    assert said.returncode == 0, said
    assert "rank 1 of 'hit', in slot 1, was killed" in said.stderr
    eventually(
        "attempt 2 runs",
        lambda: muster.json("status", "hit")["status"]["attempt"] == 2 and phase(muster, "hit") == "Running",
    )
    fault = muster.json("status", "hit")["status"]["faults"][-1]
    assert fault["slot"] == 1


def test_a_fault_that_cannot_be_made_says_why(muster: Muster) -> None:
    """Issue 11.17: ranks that the job, or the slot, does not have."""
    run(muster, "sleep.py", "--name", "whole", "--nodes", "2")
    eventually("it runs", lambda: phase(muster, "whole") == "Running")
    nowhere = muster.run("fault", "rank", "whole", "0", "--rank", "7")
    assert (nowhere.returncode, "'whole' has no rank 7" in nowhere.stderr) == (4, True)
    assert "it has the ranks 0 to 1" in nowhere.stderr

    def elsewhere() -> str:
        return muster.run("fault", "rank", "whole", "0", "--rank", "1").stderr

    eventually("the ranks run", lambda: "no rank runs" not in elsewhere())
    assert "rank 1 does not run in that pod; there are 0" in elsewhere()


def test_a_node_that_was_deleted_comes_back(muster: Muster) -> None:
    """Issue 11.17: a node that runs, and one that has vanished, after `kubectl delete node`."""
    kubectl = [str(kubectl_program()), "--kubeconfig", str(muster.kubeconfig)]

    def delete() -> None:
        subprocess.run([*kubectl, "delete", "node", "node-2"], check=True, capture_output=True, timeout=60)

    delete()
    assert "its Node had been deleted" in muster.run("fault", "return", "node-2").stderr
    ready = [*kubectl, "wait", "--for=condition=Ready", "node/node-2", "--timeout=30s"]
    eventually(
        "it is back", lambda: subprocess.run(ready, check=False, capture_output=True, timeout=60).returncode == 0
    )
    muster.ok("fault", "node", "node-2")
    delete()
    assert muster.run("fault", "return", "node-2").stderr == "node-2 comes back\n"
    eventually(
        "it is back", lambda: subprocess.run(ready, check=False, capture_output=True, timeout=60).returncode == 0
    )


def test_names_that_are_not_there_exit_with_4_and_suggest(muster: Muster) -> None:
    assert run(muster, "sleep.py", "--name", "train-gpt").returncode == 0
    for arguments in (("status", "train-gtp"), ("logs", "train-gtp"), ("stop", "train-gtp"), ("delete", "train-gtp")):
        done = muster.run(*arguments)
        assert done.returncode == 4, done
        assert "did you mean 'train-gpt'?" in done.stderr
    assert muster.run("delete", "nowhere", "--ignore-not-found").returncode == 0
    assert muster.run("status", "x", "--namespace", "elsewhere").returncode == 4
    for arguments in (("list", "-n", "elsewhere"), ("list", "-n", "elsewhere", "-o", "json")):
        done = muster.run(*arguments)
        assert (done.returncode, done.stdout) == (4, "")
        assert "there is no namespace 'elsewhere'" in done.stderr
    assert muster.run("list", "-n", "kube-public").returncode == 0


def test_the_shell_completes_names_of_jobs(muster: Muster) -> None:
    for name in ("train-a", "train-b", "other"):
        assert run(muster, "sleep.py", "--name", name).returncode == 0

    def offers(line: str, *names: str) -> None:  # in the end: on a busy machine the first answer may come too late
        eventually(f"{line!r} offers {names}", lambda: muster.offered(line) == set(names))

    for name in ("status", "logs", "exec", "stop", "resume", "delete", "explain", "fault rank"):
        offers(f"muster {name} tr", "train-a", "train-b")
    offers("muster status ", "train-a", "train-b", "other")
    offers("muster delete train-a ", "train-b", "other")
    offers("muster explain train-a --if-ended o", "other")
    assert muster.offered("muster status --namespace elsewhere tr") == set()


def test_credentials_that_do_not_hold(muster: Muster, tmp_path: Path) -> None:
    config = json.loads((muster.folder() / "apiserver" / "kubeconfig").read_text())
    config["users"][0]["user"]["token"] = "expired-token"
    path = tmp_path / "expired"
    path.write_text(json.dumps(config))
    done = muster.run("list", "--kubeconfig", path)
    assert done.returncode == 3
    assert "credentials" in done.stderr
    assert "expired-token" not in done.stderr


def test_as_kubectls_plugin(muster: Muster) -> None:
    env = {"PATH": f"{MUSTER.parent}:{os.environ['PATH']}"}
    assert run(muster, "sleep.py", "--name", "plugged").returncode == 0
    done = muster.run("muster", "status", "plugged", program=kubectl_program(), env=env)
    assert done.returncode == 0, done
    assert "kubectl muster" in done.stdout


def test_versions(muster: Muster) -> None:
    versions = muster.json("version")
    assert set(versions) == {"muster", "python", "cluster"}
    assert "embedded" in versions["cluster"]


SAVES = (
    "import muster, pathlib\nlast = muster.last_checkpoint()\nstep = last.step if last else 0\n"
    "print('began at', step, flush=True)\n"
    "muster.save_checkpoint(step + 10, lambda path: pathlib.Path(path).write_text('x'))\n"
)


def test_a_job_says_whose_checkpoints_it_leaves_alone_and_how_to_continue_from_them(muster: Muster) -> None:
    """Issue 11.2: one --checkpoint for several jobs, and --from-checkpoint. Issue 11.13: such folders do not ship."""
    (muster.work / "saves.py").write_text(SAVES)
    again = ("saves.py", "--checkpoint", "ckpt", "--wait")
    first = run(muster, *again, "--name", "saves")
    assert first.returncode == 0, first
    assert "other checkpoints" not in first.stderr
    uid = muster.json("status", "saves")["metadata"]["uid"]
    kept = muster.work / "ckpt" / f"saves-{uid[:8]}" / "step-00000010-attempt-1"
    assert kept.is_file()

    second = run(muster, *again)
    assert second.returncode == 0, second
    assert "checkpoints and data do not travel with the code; left out: ckpt/" in second.stderr
    assert re.search(r"it starts from the beginning, in ckpt/saves-\w{5}-\w{8}\n", second.stderr), second
    assert "./ckpt holds other checkpoints, which it leaves alone: job saves, step 10\n" in second.stderr
    line = re.search(r"to continue from job saves instead: muster delete saves-\w{5} && muster (.*)", second.stderr)
    assert line is not None, second
    assert line[1] == f"run {' '.join(again)} --launcher none --from-checkpoint ckpt/saves-{uid[:8]}"

    third = muster.run(*line[1].split())
    assert third.returncode == 0, third
    assert "it starts from the checkpoint of job 'saves' of step 10: ckpt/saves-" in third.stderr
    name = re.findall(r"training job '(saves-\w+)' created", third.stderr)[0]
    assert "began at 10" in muster.ok("logs", name)
    assert "Checkpoint:  step 20, " in muster.ok("status", name)

    fourth = run(muster, *again, "--name", "fourth", "--from-checkpoint", "saves")
    assert "it starts from job 'saves', step 10" in fourth.stderr
    muster.ok("delete", "saves")
    fifth = run(muster, *again, "--name", "fifth", "--from-checkpoint", "saves")
    assert "it starts from job 'saves', which was deleted, step 10: ckpt/saves-" in fifth.stderr
    assert all("began at 10" in muster.ok("logs", each) for each in ("fourth", "fifth"))
    assert kept.is_file()
    plain = muster.run("saves.py", program=Path(sys.executable), env={"MUSTER_CHECKPOINT_DIR": "ckpt"})
    assert (plain.returncode, plain.stdout) == (0, "began at 0\n"), plain
    assert kept.is_file()


@pytest.mark.parametrize(
    ("flags", "code", "said"),
    [
        (
            ("--checkpoint", "ckpt", "--from-checkpoint", "never"),
            4,
            "no job 'never' in namespace default, nor",
        ),
        (("--checkpoint", "ckpt", "--from-checkpoint", "./nowhere"), 4, "there is no checkpoint at"),
        (("--from-checkpoint", "hello"), 2, "--from-checkpoint needs --checkpoint"),
        (("--checkpoint", "ckpt", "--from-checkpoint", ""), 2, "--from-checkpoint is empty"),
        (("--checkpoint", "ckpt", "--from-checkpoint", "Not_A_Job"), 2, "is not the name of a job"),
    ],
)
def test_a_checkpoint_that_is_not_there_is_refused_before_anything_is_created(
    muster: Muster, flags: tuple[str, ...], code: int, said: str
) -> None:
    """Issue 11.2: --from-checkpoint."""
    done = run(muster, "hello.py", *flags)
    assert (done.returncode, said in done.stderr) == (code, True), done
    assert muster.json("list")["items"] == []
