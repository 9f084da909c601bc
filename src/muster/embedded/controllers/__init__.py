"""What kube-controller-manager does for the kinds served here: garbage, namespaces, nodes, eviction, quotas, budgets."""
