"""Builds the documentation site from the Markdown files of the repository (`make docs`)."""
