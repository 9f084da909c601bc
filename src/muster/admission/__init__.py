"""The webhook that fills in what keeps a pod to its team's nodes; the chart's policies refuse what must not be."""
