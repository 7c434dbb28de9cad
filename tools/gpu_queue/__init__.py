"""Run a list of measurements on a GPU that is there for a limited time: `python -m tools.gpu_queue`."""
