"""Traffic accounting: bytes of each pod, job and class of peers, counted by the kernel."""
