"""Files: checkpoints, safetensors, JSON, text, output directories."""
