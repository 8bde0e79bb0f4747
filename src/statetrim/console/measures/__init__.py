"""Console output of the commands that measure a model."""
