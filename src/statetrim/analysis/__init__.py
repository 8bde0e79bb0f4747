"""Model and text -> Analysis: how full the state is."""
