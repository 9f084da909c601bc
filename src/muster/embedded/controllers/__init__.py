"""What kube-controller-manager does for the kinds here: garbage, namespaces, nodes, eviction, quotas, budgets."""
