"""Relative attention in plain PyTorch: the path of a CPU, and the fallback on any device."""
