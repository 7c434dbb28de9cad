"""An HTTP server for trained models, with sessions that keep a memory, and pages to look at it."""
