"""Methods that select whole heads."""
