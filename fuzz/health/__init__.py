"""Node health in simulated clusters: agents, machines and tests are models, and the controllers are real."""
