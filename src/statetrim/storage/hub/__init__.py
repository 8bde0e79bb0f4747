"""Models on the Hugging Face hub: download one, upload a cut."""
