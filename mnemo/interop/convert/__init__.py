"""Convert checkpoints of other implementations to Mnemo's, and back. The core never imports this package."""
