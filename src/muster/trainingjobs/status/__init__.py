"""The status of a job: conditions, progress, stalls, timelines."""
