"""How tensors are stored: kinds of levels, and formats built from them."""

from scorch._src.formats import *  # noqa: F403
from scorch._src.formats import __all__ as __all__
