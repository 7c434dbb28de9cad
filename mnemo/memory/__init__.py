"""Memories: what a layer keeps of earlier segments. One file a mechanism."""

from mnemo.memory.plan import AnyMemory, Plan
from mnemo.memory.xl import XL, XLCache, XLState

__all__ = ["XL", "AnyMemory", "Plan", "XLCache", "XLState"]
