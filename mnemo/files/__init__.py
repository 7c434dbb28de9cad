"""Files on disk: loading untrusted files safely, and writing atomically."""
