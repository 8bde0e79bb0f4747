"""What capabilities read and write."""
