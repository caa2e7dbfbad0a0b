"""Training steps, the device they run on (CUDA or simulated), and the loop that measures them."""

from .accelerator import Accelerator, DeviceWindow, is_out_of_memory, open_accelerator
from .cached import CachedBatches
from .loop import Window, measure
from .probe import MemoryProbe, ProbeLoader, probe_memory
from .step_name import name_of_step
from .steps import REFERENCE_STEPS, Step, StepSpec, build_step, validate_step_name
from .user_step import stop_while_importing

__all__ = [
    "REFERENCE_STEPS",
    "Accelerator",
    "CachedBatches",
    "DeviceWindow",
    "MemoryProbe",
    "ProbeLoader",
    "Step",
    "StepSpec",
    "Window",
    "build_step",
    "is_out_of_memory",
    "measure",
    "name_of_step",
    "open_accelerator",
    "probe_memory",
    "stop_while_importing",
    "validate_step_name",
]
