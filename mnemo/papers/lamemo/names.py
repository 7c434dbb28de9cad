"""What LaMemo's experiments say alike."""

PAPER = "LaMemo: Language Modeling with Look-Ahead Memory"
