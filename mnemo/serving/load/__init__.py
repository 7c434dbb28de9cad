"""The load benchmark: many sessions at the same time, and one long conversation beside a growing cache."""
