"""A file a command: what tells how large, how good and how fast a model is."""
