"""Models of other implementations, as ours. Outside the core, which never imports this."""
