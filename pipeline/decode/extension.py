"""The C extension where it is built, or why it is not."""

from __future__ import annotations

from types import ModuleType

__all__ = ["native", "native_error"]

native: ModuleType | None
try:
    from . import _jpeg as native
except ImportError as error:
    # Not built (no compiler, no libjpeg headers) or libjpeg is missing: `doctor` shows the reason.
    native, native_error = None, str(error)
else:
    native_error = ""
