"""Models on the Hugging Face hub."""
