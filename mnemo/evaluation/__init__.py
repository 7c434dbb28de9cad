"""Scores of a model on a corpus (perplexity, bits per symbol) or on a task (accuracy)."""
