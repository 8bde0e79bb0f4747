"""The package's version, read from its metadata."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("statetrim")
except PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0.0.0"
