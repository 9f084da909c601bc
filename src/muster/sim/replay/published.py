"""Published statistics about the jobs of four GPU clusters. The models in `arrivals.py` are fitted to these numbers.

Source: `data/cluster_summary.csv` in InternLM/AcmeTrace, the table of cluster statistics of the paper
"Characterization of Large Language Model Development in the Datacenter" (NSDI'24). Only its columns for GPU jobs are
used.
"""

from __future__ import annotations

import msgspec


class Statistics(msgspec.Struct, frozen=True):
    """GPU jobs of one cluster; times in seconds. In each of the four clusters, the median job has one GPU."""

    mean_run_s: float
    median_run_s: float
    max_run_s: float
    mean_gpus: float
    max_gpus: int
    mean_gpu_s: float


CLUSTERS = {
    "seren": Statistics(1414.335, 122.0, 1209604.0, 5.68, 1024, 21510634561.0 / 663813),
    "kalos": Statistics(1259.689, 124.0, 625740.0, 26.77, 1024, 5333180201.0 / 19907),
    "philly": Statistics(18006.055, 874.0, 4240676.0, 1.928, 128, 6894717531.0 / 112956),
    "helios": Statistics(6651.681, 206.0, 4320009.0, 3.716, 2048, 77998739755.0 / 1580464),
}
"""The statistics by cluster.

`mean_gpu_s` is the GPU time of completed, cancelled and failed jobs, divided by the number of jobs.
"""

JOB_MTBF_HOURS = 8.0
JOB_MTBF_NODES = 128
NODE_MTBF_HOURS = JOB_MTBF_HOURS * JOB_MTBF_NODES
"""Mean time between failures of one node. A job on 1,024 GPUs (128 nodes) fails every 8 h (Meta, "Revisiting
Reliability in Large-Scale Machine Learning Research Clusters", HPCA'25). If nodes fail independently, one node fails
every 1,024 h. The paper expects a failure every 1.8 h at 16,384 GPUs, which is 3,686 h for one node."""
