"""What a person sees of sizes, scores and timings."""
