"""The model of a node that all parts of the fleet share."""
