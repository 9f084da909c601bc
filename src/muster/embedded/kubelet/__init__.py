"""The process kubelet: runs pods as processes of this machine, for the embedded or a real API server."""
