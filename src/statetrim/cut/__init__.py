"""The vocabulary of a cut: axes and shapes, requests, geometry, targets, and rows of tensors."""
