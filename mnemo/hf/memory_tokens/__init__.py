"""Recurrent memory tokens for models of the transformers library."""
