"""Shrink the recurrent state of linear-attention models after training.

The public names are listed in `__init__.pyi`, which editors and type checkers also read. Each is
imported on first use, so that `import statetrim` is fast. No module directly in this package may
have the name of a public function: once imported, it would replace the function.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
