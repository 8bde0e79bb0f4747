"""What a shape means for engines and memory."""
