"""Recipes and presets: everything that a run depends on, and the published configurations by name."""
