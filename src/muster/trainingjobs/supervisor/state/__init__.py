"""The supervisor's state machine: typed events in, typed instructions out; no processes, files, sockets or clock."""
