"""Fine-tune a model with memory on a task whose answers are far from the question: `mnemo tune` in Python."""
