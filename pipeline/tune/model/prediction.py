"""What the model says about a setting before it is run."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Limit = Literal["step", "decoding on the device", "loader", "copy", "launching thread"]
"""The part that is predicted to set the pace."""


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """Predicted figures of one setting.

    Attributes:
        samples_per_second: of the step fed by the loader, epoch boundaries included where their cost is known.
        util_percent: GPU-Util, decode kernels included; None where the ceiling's was not measured.
        host_bytes: host memory of waiting batches and worker processes.
        device_bytes: peak device memory, decoded batches that wait there included; None where the step's is not known.
        limit: the part that sets the pace.
    """

    samples_per_second: float
    util_percent: float | None
    host_bytes: float
    device_bytes: float | None
    limit: Limit

    def to_dict(self) -> dict[str, Any]:
        """The report's `predicted`."""
        return asdict(self)
