"""What judges: losses from scores, verdicts, rules, and the choice of a shape."""
