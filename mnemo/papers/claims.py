"""From a claim and what was measured to a verdict."""

from __future__ import annotations

from dataclasses import dataclass

from mnemo.papers.experiment import Results, Verdict


@dataclass(frozen=True)
class Claim:
    """A sentence to be tested, with the paper's numbers."""

    text: str
    paper: str

    def open(self, why: str) -> Verdict:
        return Verdict(claim=self.text, paper=self.paper, ours=why, holds=None)

    def judged(self, results: Results, ours: str, holds: bool | None, *, smoke: str) -> Verdict:
        """What was measured decides, but not at the budget that only shows that everything runs.

        `smoke`: what is said there behind the numbers.
        """
        if results.budget == "smoke":
            return self.open(f"{ours}{smoke}")
        return Verdict(claim=self.text, paper=self.paper, ours=ours, holds=holds)
