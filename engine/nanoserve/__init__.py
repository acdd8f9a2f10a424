"""nanoserve: which shapes may a decode step present, and what does that choice cost?

`import nanoserve` imports no torch. The names below that need it (the engine's model side, `compiled`, `load_model`,
`check_step_inert`) are imported when they are first used; without the extra `nanoserve[engine]` that is an ImportError
which says so.

Exceptions::

    AssertionError
      GateError                 a check of this program failed; says figure, limit and what to change
        BucketsUnsound          a policy that breaks its promise or its budget
        BlocksUnsound           the ledger of blocks is wrong
        SlotsUnsound            the slot table or a window on it is wrong
        PlanUnsound             a plan would read or write the wrong place
          StepNotInert          padding reached a real row
        StepRecompiled          a step after warm-up would have compiled
        CaptureUnsound          a step that cannot be recorded, or no longer replayed
        StorageUnsound          a step allocated where it should write in place
    ValueError
      RequestRejected           a request that can never run
      DoesNotFit                an allocation larger than the memory
      CheckpointError           files of a model that are absent or damaged
      UnsupportedModel          a model that is whole and not implemented
    RuntimeError
      KVCacheExhausted          no free block
      SlotTableFull             no column left in a row
      CompilerMissing           Inductor on a CPU without a C++ compiler
      CaptureFailed             the device refused a capture
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nanoserve.buckets import (
    BucketsUnsound,
    CaptureList,
    DecodeBuckets,
    DecodePolicy,
    DecodeShape,
    GateError,
    Shape,
    StaircaseBuckets,
    bucket_for,
    bucket_run,
    padded_cells,
    round_up,
    waste,
)
from nanoserve.cache import (
    BatchedPagedKVCache,
    BlockAllocator,
    BlocksUnsound,
    BlockTable,
    KVCacheExhausted,
    SlotsUnsound,
    SlotTable,
    SlotTableFull,
    audit_blocks,
)
from nanoserve.decode import CaptureFailed, CompilerMissing
from nanoserve.engine import Engine, StepResult
from nanoserve.extras import import_engine as _import_engine
from nanoserve.gates import (
    CAPTURE_LIMIT,
    DEFAULT_WASTE_LIMIT,
    RECOMPILE_LIMIT,
    check_capture_budget,
    check_run_closed,
    check_shape_in_set,
    check_waste_bounded,
)
from nanoserve.ladders import ROW_LADDERS, capture_list, completed, row_ladder, width_ladder
from nanoserve.memory import DoesNotFit
from nanoserve.model.errors import CheckpointError, UnsupportedModel
from nanoserve.plan import (
    DecodePlan,
    PlanUnsound,
    check_pad_inert,
    check_plan,
    check_plan_addressing,
    check_plan_current,
    check_plan_rows,
    check_plan_window,
    decode_shape,
    plan_decode,
)
from nanoserve.pricing import RunCost, StepsIndex, price_run
from nanoserve.sampling import SamplingParams
from nanoserve.scheduler import RequestOutput, RequestRejected
from nanoserve.simulate import Simulation, simulate
from nanoserve.step_time import FixedStep, LinearStepTime, StepTime, TableStepTime, parse_step_time
from nanoserve.steps import Segment, Steps, StepsRecorder
from nanoserve.workload import Workload

if TYPE_CHECKING:
    from nanoserve.decode.compiled import CompiledRegion, StepRecompiled, compiled
    from nanoserve.decode.trace import CaptureUnsound
    from nanoserve.inert import StepNotInert, check_step_inert
    from nanoserve.model.load import load_model
    from nanoserve.storage import StorageUnsound

__version__ = "0.1.0"

__all__ = [
    "CAPTURE_LIMIT",
    "DEFAULT_WASTE_LIMIT",
    "RECOMPILE_LIMIT",
    "ROW_LADDERS",
    "BatchedPagedKVCache",
    "BlockAllocator",
    "BlockTable",
    "BlocksUnsound",
    "BucketsUnsound",
    "CaptureFailed",
    "CaptureList",
    "CaptureUnsound",
    "CheckpointError",
    "CompiledRegion",
    "CompilerMissing",
    "DecodeBuckets",
    "DecodePlan",
    "DecodePolicy",
    "DecodeShape",
    "DoesNotFit",
    "Engine",
    "FixedStep",
    "GateError",
    "KVCacheExhausted",
    "LinearStepTime",
    "PlanUnsound",
    "RequestOutput",
    "RequestRejected",
    "RunCost",
    "SamplingParams",
    "Segment",
    "Shape",
    "Simulation",
    "SlotTable",
    "SlotTableFull",
    "SlotsUnsound",
    "StaircaseBuckets",
    "StepNotInert",
    "StepRecompiled",
    "StepResult",
    "StepTime",
    "Steps",
    "StepsIndex",
    "StepsRecorder",
    "StorageUnsound",
    "TableStepTime",
    "UnsupportedModel",
    "Workload",
    "audit_blocks",
    "bucket_for",
    "bucket_run",
    "capture_list",
    "check_capture_budget",
    "check_pad_inert",
    "check_plan",
    "check_plan_addressing",
    "check_plan_current",
    "check_plan_rows",
    "check_plan_window",
    "check_run_closed",
    "check_shape_in_set",
    "check_step_inert",
    "check_waste_bounded",
    "compiled",
    "completed",
    "decode_shape",
    "load_model",
    "padded_cells",
    "parse_step_time",
    "plan_decode",
    "price_run",
    "round_up",
    "row_ladder",
    "simulate",
    "waste",
    "width_ladder",
]

_NEEDS_TORCH = {
    "CompiledRegion": "nanoserve.decode.compiled",
    "StepRecompiled": "nanoserve.decode.compiled",
    "compiled": "nanoserve.decode.compiled",
    "CaptureUnsound": "nanoserve.decode.trace",
    "StepNotInert": "nanoserve.inert",
    "StorageUnsound": "nanoserve.storage",
    "check_step_inert": "nanoserve.inert",
    "load_model": "nanoserve.model.load",
}


def __getattr__(name: str) -> Any:
    module = _NEEDS_TORCH.get(name)
    if module is None:
        raise AttributeError(f"module 'nanoserve' has no attribute {name!r}")
    return getattr(_import_engine(module, f"nanoserve.{name}"), name)
