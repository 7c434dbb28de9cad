"""Imported last by the server that processes are forked from: their garbage collections skip its objects."""

from __future__ import annotations

import gc

gc.freeze()
