"""Names of the runtimes' calls by what the host does in them, and how long it may take between two.
Without NumPy: what only reads names and past answers starts sooner.
"""

from __future__ import annotations

import re

# Runtimes of other devices name their calls as CUDA does: musaStreamSynchronize, aclrtMemcpyAsync.
SYNC_CALL = re.compile(
    r"^[a-z]\w*Synchronize|^(?:cuda|cu|hip)StreamWaitValue"
    # What is not asynchronous is a wait, also ROCm's hipMemcpyWithStream.
    r"|^[a-z]+Memcpy(?:(?!Async|Peer)\w)*$"
    # Intel's Unified Runtime
    r"|^ur(?:QueueFinish|EventWait)"
)
ALLOCATION_CALL = re.compile(
    r"^[a-z]+(?:Malloc|Free|MallocHost|HostAlloc|FreeHost|Mem(?:Alloc|Free)\w*"
    r"|Mem(?:Map|Unmap|Create|Release)|MallocAsync)(?:_v\d+\w*)?$"
    r"|^urUSM(?:\w*Alloc|Free)|^zeMem(?:Alloc\w*|Free)$"
)
COPY_CALL = re.compile(
    r"^[a-z]+Memcpy\w*Async|^urEnqueue(?:USM|Mem)\w*(?:Memcpy|Copy|Read|Write)"
    r"|^zeCommandListAppendMemoryCopy",
    re.IGNORECASE,
)
BLOCKING_COPY_NS = 20_000
"""A copy call that takes longer than this waits for the copy."""
PYTHON_NS = 200_000
"""A host that launches operators makes a call every 5 to 100 us: between two launches further apart
than this, and without an operator, it does something else.
"""
SHORT_PAUSE_NS = PYTHON_NS // 2
"""Where few such pauses take much of the time, this is enough: see `host.view`."""
