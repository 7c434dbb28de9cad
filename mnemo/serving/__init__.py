"""Serving a model to many clients at the same time: the engine that computes, session storage and the HTTP server."""
