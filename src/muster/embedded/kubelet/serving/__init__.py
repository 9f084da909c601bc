"""What the kubelet serves to its API server."""
