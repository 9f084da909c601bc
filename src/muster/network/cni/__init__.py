"""The CNI plugin of the node agent: a daemon behind a small program, and what makes a pod's network complete."""
