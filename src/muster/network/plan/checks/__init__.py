"""Rules about an estate of clusters: estate in, findings out."""
