"""Every module in this folder registers algorithms by being there: adding one is one file and no other edit."""

from importlib import import_module
from pkgutil import iter_modules

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
