"""Tests of a node's GPUs, with exclusive use of them: `python -m muster.gputest --level 1|2|3` (docs/gputest.md).

```
 __main__  cli.py ── levels.py: the tests and their times
             │
             session.py ── wire.py ──> worker.py, a process that is killed if a test exceeds its deadline
             │                            └─ probes/*.py, one test each, on a Backend (backend.py):
             │                                 reference.py (numpy), nvidia.py (PyTorch, NVML); drill.py injects faults
             verdict.py: floors.yaml, outliers.py
             │
             report.py ── show.py
```
It imports no other part of Muster, so that a separate image can contain it.
"""
