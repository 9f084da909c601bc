"""PromQL: which series an expression selects, over which time and how often; matchers and their patterns."""
