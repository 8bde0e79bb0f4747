"""More model types of fla, a file each, as in the folder above."""
