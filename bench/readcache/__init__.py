"""The read cache against the kube-apiserver behind it: watches, lists, memory, CPU, and a restart."""
