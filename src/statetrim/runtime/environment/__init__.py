"""Installed packages, devices and kernels, and which of them would be used."""
