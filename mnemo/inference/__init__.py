"""Using a trained model: decoding token by token, scoring segment by segment, generating text."""
