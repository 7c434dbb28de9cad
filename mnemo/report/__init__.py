"""HTML pages about runs, texts and experiments, and their figures."""
