"""A text in progress: one model reads and writes it, with a memory that can be saved, forked and forgotten."""
