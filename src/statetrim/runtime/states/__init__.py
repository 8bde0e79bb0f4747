"""Recurrent states of a running model: looked at token by token, or stored in fewer bits."""
