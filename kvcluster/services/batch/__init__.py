"""The batch job: lines of a file in, results appended to another, exactly once a line."""
