"""Coverage-guided fuzzing of everything that bytes from a peer reach; `python -m fuzz` runs it."""
