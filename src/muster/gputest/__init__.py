"""Tests of a node's GPUs, to be run alone on it: `python -m muster.gputest --level 1|2|3` (docs/gputest.md).

```
 __main__  cli.py ── levels.py: which tests, how long each
             │
             session.py ── wire.py ──> worker.py, a process that is killed where a test outlasts its deadline
             │                            └─ probes/*.py, a test each, over a Backend (backend.py):
             │                                 reference.py (numpy), nvidia.py (PyTorch, NVML); drill.py injects faults
             verdict.py: floors.yaml, outliers.py
             │
             report.py ── show.py
```
It imports nothing else of Muster's, so that an image of its own can hold it.
"""
