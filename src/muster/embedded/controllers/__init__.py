"""What kube-controller-manager does for the kinds served here: collection, namespaces, nodes, eviction, quotas, budgets."""
