"""Models have the published statistics, and so have the jobs that are drawn from them."""

from __future__ import annotations

import statistics

import pytest

from muster.sim.replay.arrivals import OFFERED_LOAD, fit, made_up
from muster.sim.replay.published import CLUSTERS


@pytest.mark.slow
@pytest.mark.parametrize("name", CLUSTERS)
def test_a_fitted_model_has_the_published_means(name: str) -> None:
    published, model = CLUSTERS[name], fit(CLUSTERS[name])
    assert sum(model.shares) == pytest.approx(1.0)
    gpus = sum(each * share for each, share in zip(model.gpus, model.shares, strict=True))
    assert gpus == pytest.approx(published.mean_gpus, rel=1e-6)
    assert model.gpus[-1] == published.max_gpus
    assert model.mean(0.0) == pytest.approx(published.mean_run_s, rel=1e-4)
    assert model.mean(1.0) == pytest.approx(published.mean_gpu_s, rel=1e-4)


@pytest.mark.slow
def test_jobs_drawn_from_a_model_have_its_statistics() -> None:
    workload = made_up("seren", nodes=10_000, gpus=8, days=1.0, jobs=40_000, least_gpus=0, seed=1)
    published = CLUSTERS["seren"]
    assert len(workload.jobs) == 40_000
    assert statistics.median(job.run_s for job in workload.jobs) == pytest.approx(published.median_run_s, rel=0.05)
    small = [job for job in workload.jobs if job.gpus == 1]
    assert len(small) / 40_000 == pytest.approx(0.5, abs=0.01)
    assert statistics.mean(job.gpus for job in workload.jobs) == pytest.approx(published.mean_gpus, rel=0.15)
    assert max(job.run_s for job in workload.jobs) <= published.max_run_s
    times = [job.submit_s for job in workload.jobs]
    assert times == sorted(times)
    assert 0 <= times[0] < times[-1] < 86400


@pytest.mark.slow
def test_without_a_number_of_jobs_they_ask_for_the_offered_load() -> None:
    workload = made_up("helios", nodes=2000, gpus=8, days=60.0, jobs=0, least_gpus=16, seed=2)
    asked = sum(job.run_s * job.gpus for job in workload.jobs) / (2000 * 8 * 60 * 86400)
    assert asked == pytest.approx(OFFERED_LOAD, rel=0.15)
    assert all(16 <= job.gpus <= 2048 and job.gang for job in workload.jobs)


@pytest.mark.slow
def test_one_seed_makes_the_same_jobs_and_another_others() -> None:
    first, again, other = (
        made_up("kalos", nodes=20, gpus=8, days=1.0, jobs=50, least_gpus=0, seed=seed).jobs for seed in (3, 3, 4)
    )
    assert first == again
    assert first != other


@pytest.mark.slow
def test_a_model_without_jobs_of_that_size_says_which_it_has() -> None:
    with pytest.raises(ValueError, match="no job of this model has 256 to 8000 GPUs; it has 1 to 128"):
        made_up("philly", nodes=1000, gpus=8, days=1.0, jobs=1, least_gpus=256, seed=0)
