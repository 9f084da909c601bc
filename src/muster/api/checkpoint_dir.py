"""The folder of a job's checkpoints: each job has its own, so that jobs with the same path cannot harm each other."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import urlsplit

from muster.api.store_url import is_url, local_folder
from muster.api.training_job import TrainingJob

_UID_CHARS: Final = 8
_NAME: Final = re.compile(r"(?:^|/)step-\d+-attempt-(\d{1,9})(?:-\d+)?/?$")


def own_folder(path: str, name: str, uid: str) -> str:
    """The folder or URL of one job below `spec.checkpoint.path`: PATH/NAME-UID8. A `file://` URL gives a folder."""
    own, path = f"{name}-{uid[:_UID_CHARS]}", local_folder(path)
    if is_url(path):
        parts = urlsplit(path)
        return parts._replace(path=f"{parts.path.rstrip('/')}/{own}").geturl()
    return f"{path.rstrip('/')}/{own}"


def folder_of(job: TrainingJob) -> str:
    """The folder or URL that a job uses; "" if the job has no checkpoints.

    If the job began under a version that gave jobs no folders of their own, its status has no folder. It uses the path
    itself.
    """
    if job.status.checkpoint_dir or job.spec.checkpoint is None:
        return job.status.checkpoint_dir
    if job.status.attempt > 0:
        return job.spec.checkpoint.path
    return own_folder(job.spec.checkpoint.path, job.name, job.uid)


def attempt_in(path: str) -> int | None:
    """The attempt in the name of a checkpoint of the SDK; None for other names."""
    found = _NAME.search(path)
    return int(found[1]) if found else None
