"""What Mnemo writes and loads: run folders, checkpoints (also sharded over processes) and memory files."""
