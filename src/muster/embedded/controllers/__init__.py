"""The controllers of kube-controller-manager for these kinds: garbage, namespaces, nodes, eviction, quotas, budgets."""
