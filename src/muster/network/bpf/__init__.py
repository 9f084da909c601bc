"""eBPF without a library: an assembler, maps, and programs at control groups, by the system call bpf(2)."""
