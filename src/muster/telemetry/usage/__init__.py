"""Which scraped metrics are used: reads dashboards, rules and query logs, and proposes drop rules for the rest."""
