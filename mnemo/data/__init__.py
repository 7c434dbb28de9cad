"""Text on its way to a model: tokenizers, prepared corpora, and the streams that cut them into segments."""
