"""`statetrim trim`, and what it shows before, during and after a run."""
