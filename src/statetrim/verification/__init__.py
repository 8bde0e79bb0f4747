"""Run a cut and its original in a real engine and compare its choices with transformers."""
