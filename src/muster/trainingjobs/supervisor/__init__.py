"""Muster's rank supervisor: process 1 of every worker pod. Standard library only, Python 3.8+, relative imports only.

    supervisor.py install DIR        make DIR/supervisor.py, and copy the SDK to DIR/sdk/muster (init container)
    supervisor.py run                a worker's main: join the controller, run what it directs, keep nothing alive after
    supervisor.py rank -- COMMAND    one rank: started by mpiexec, torchrun or `run`, reports its end to `run`
    supervisor.py rsh HOST COMMAND   the ssh role for mpiexec: run COMMAND below the supervisor of HOST
    supervisor.py stacks [--rank N]  where each rank is: `muster stacks` runs it in the pod
    supervisor.py dial, session      below ssh and sshd, where a job uses its image's own (`mpi.remoteShell: sshd`)

`install` puts these modules into one file, a zip archive that Python runs whatever its name is. Nothing in it is
compiled beforehand, so `rank` and `rsh`, started once per rank and node, import as little as they can.
"""
