"""Tables of presets: `@TABLE.add("name")` on a function that returns a recipe."""

from __future__ import annotations

from collections.abc import Callable

from mnemo.recipes.recipe import Recipe

Preset = Callable[[], Recipe]


class Table(dict[str, Preset]):
    """Presets by name; the docstring of a preset gives the source of its numbers."""

    def add(self, name: str) -> Callable[[Preset], Preset]:
        def enter(function: Preset) -> Preset:
            if name in self:
                raise ValueError(f"two presets are called {name}")
            self[name] = function
            return function

        return enter

    def add_variant(self, name: str, summary: str, base: Preset, change: Callable[[Recipe], Recipe]) -> None:
        """Add a preset that changes another one; its documentation is `summary` followed by that of the other."""

        def variant() -> Recipe:
            return change(base())

        variant.__doc__ = f"{summary}\n\nOtherwise as: {base.__doc__}"
        self.add(name)(variant)
