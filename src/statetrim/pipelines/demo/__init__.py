"""The demo: the real commands on a small trained model, and what they show."""
