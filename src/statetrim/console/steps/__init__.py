"""Console output of the commands for single steps of `trim`."""
