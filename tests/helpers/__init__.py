"""What several tests share: tiny checkpoints, oracles, workers of other processes."""
