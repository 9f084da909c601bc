"""Backends of traffic accounting: nftables, legacy iptables, cgroup eBPF."""
