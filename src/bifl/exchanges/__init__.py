"""The exchanges that a round is made of, one module each (`bifl.exchanges.exchange`)."""

from importlib import import_module
from pkgutil import iter_modules


def register_all() -> None:
    """Import every module in this folder: they register exchanges by being there, and adding one is one file."""
    for module in iter_modules(__path__):
        import_module(f"{__name__}.{module.name}")
