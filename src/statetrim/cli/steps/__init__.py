"""A file a command: the steps of a trim, one by one."""
