"""How nodes are emptied within budgets."""
