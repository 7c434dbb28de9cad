"""Transformers models with memory tokens in the server."""
