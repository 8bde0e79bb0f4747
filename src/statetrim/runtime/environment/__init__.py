"""What is installed here, and what of it would be used."""
