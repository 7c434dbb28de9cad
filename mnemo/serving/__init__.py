"""An HTTP server for trained models: the interface of OpenAI's API, and sessions that keep a model's state."""
