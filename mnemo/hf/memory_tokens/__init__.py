"""Recurrent memory tokens (RMT) around models of the transformers library."""
