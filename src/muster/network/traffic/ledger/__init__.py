"""The ledger of a node: turns the kernel's counters into totals per job that survive every restart."""
