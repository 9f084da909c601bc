"""The admission webhook: adds what keeps a pod on its team's nodes. The chart's policies refuse what is not allowed."""
