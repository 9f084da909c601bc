"""The node cache: one process per node keeps blocks of objects on local disk for the readers of all jobs."""
