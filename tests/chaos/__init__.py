"""Everything that is killed, stopped and lost, with requests running: `python -m tests.chaos` (make chaos)."""
