"""Other implementations: converting their checkpoints, and comparing our numbers with theirs."""
