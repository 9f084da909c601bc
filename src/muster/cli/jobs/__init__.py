"""Commands about jobs: run, list, status, explain, stop, resume, delete."""
