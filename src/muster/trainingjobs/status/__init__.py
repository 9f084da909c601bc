"""What a job says of itself: conditions, progress, stalls, timelines."""
