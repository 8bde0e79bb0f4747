"""Shrink the recurrent state of linear-attention models after training.

The public names stand in `__init__.pyi`, which editors and type checkers read too. Each is imported
on first use, so that `import statetrim` costs nothing. (No module may have the name of a public
function: once imported, it would stand in the function's place.)
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
