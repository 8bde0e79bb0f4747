"""Console output, with a module per command."""
