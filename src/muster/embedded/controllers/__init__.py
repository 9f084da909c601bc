"""Controllers as in kube-controller-manager: garbage collection, namespaces, nodes, eviction, quotas, budgets."""
