"""The process kubelet: runs pods as processes of this machine, for the embedded cluster or for a real API server."""
