"""A cut and its original in a real engine, judged by transformers."""
