"""Names of the runtimes' calls by what the host does in them, and how long it may take between two.
Without NumPy: what only reads names and past answers starts sooner.
"""

from __future__ import annotations

import re

SYNC_CALL = re.compile(
    r"^(?:cuda|cu|hip)(?:DeviceSynchronize|StreamSynchronize|EventSynchronize|CtxSynchronize"
    r"|StreamWaitValue\w*|Memcpy(?:2D|3D|HtoD|DtoH|DtoD)?)(?:_ptsz|_v\d+\w*)?$"
    # Intel's runtimes: Unified Runtime and Level Zero
    r"|^ur(?:QueueFinish|EventWait)|^ze(?:CommandQueueSynchronize|CommandListHostSynchronize"
    r"|EventHostSynchronize|FenceHostSynchronize)$"
)
ALLOCATION_CALL = re.compile(
    r"^(?:cuda|cu|hip)(?:Malloc|Free|MallocHost|HostAlloc|FreeHost|Mem(?:Alloc|Free)\w*"
    r"|Mem(?:Map|Unmap|Create|Release)|MallocAsync)(?:_v\d+\w*)?$"
    r"|^urUSM(?:\w*Alloc|Free)|^zeMem(?:Alloc\w*|Free)$"
)
COPY_CALL = re.compile(
    r"^(?:cuda|cu|hip)Memcpy\w*Async|^urEnqueue(?:USM|Mem)\w*(?:Memcpy|Copy|Read|Write)"
    r"|^zeCommandListAppendMemoryCopy",
    re.IGNORECASE,
)
PYTHON_NS = 200_000
"""A host that launches operators makes a call every 5 to 100 us: between two launches further apart
than this, and without an operator, it does something else.
"""
