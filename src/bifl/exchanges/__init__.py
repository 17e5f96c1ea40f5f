"""The exchanges that a round is made of.

A module for each that can be chosen or named, found by being there: `ballot`, `batchnorm`, `input_counts`, `personal`, `scoring`.
What they are made of: `exchange` (the base class, how an upload is taken in), `numbers` (the base of counts), `bounds`. And
`secure_sum`, which says others under masks: it needs the extra `bifl[secure]`, and is imported by runs that ask for it.
"""

from importlib import import_module
from pkgutil import iter_modules


def register_all() -> None:
    """Import the modules in this folder, so that those which register an exchange do: adding one is one file."""
    for module in iter_modules(__path__):
        if module.name != "secure_sum":
            import_module(f"{__name__}.{module.name}")
