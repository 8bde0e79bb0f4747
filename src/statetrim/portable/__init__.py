"""Pure-PyTorch models that load and save fla checkpoints unchanged, on any PyTorch device.

The public names are listed in `__init__.pyi`. Each is imported on first use, because the models
need transformers and the kernels do not.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
