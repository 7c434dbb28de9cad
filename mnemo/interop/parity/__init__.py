"""Compare our numbers with those of published implementations, which are stored in files of reference values.

The metadata of a file give its `format` and its configuration. Every tensor in it must be used or compared.
"""
