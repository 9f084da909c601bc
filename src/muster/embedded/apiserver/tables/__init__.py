"""Tables for `kubectl get`."""
