"""Detectors of what keeps a device waiting: input, launches, the host's other work and its waits.

Each takes the evidence and returns what it has found, nothing for most captures.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

from bottleneck_lab.analysis.causes import CAUSE_OF, OUTSIDE, Cause
from bottleneck_lab.analysis.evidence import IDLE_SHARE, NEARLY_ALL, Detection, Evidence
from bottleneck_lab.analysis.host.lines import LineRow
from bottleneck_lab.analysis.host.operators import OperatorRow
from bottleneck_lab.analysis.host.syncs import waits_by_line
from bottleneck_lab.analysis.what_if.removal import Removal
from bottleneck_lab.wording import counted, list_numbers

WAITED_SHARE = 0.02
"""Waiting of other ranks below this share of the time is not worth a sentence."""
STARTING_SHARE = 0.05
"""Starting worker processes below this share of the time is not worth a sentence."""
AS_GOOD = 0.8
"""Removing waits is worth a sentence if it gains this share of what removing the work gains."""
SMALL_SHARE = 0.30
SITE_SHARE = 0.30
MANY_CALLS = 100
"""This many operator calls from one line in one step are a loop that could be one operator."""
LONG_CALL_NS = 100_000
SMALL_NS = 10_000
"""An operator call shorter than this on the CPU is mostly call overhead."""

BETWEEN_SHARE, BETWEEN_NS = 0.6, 20_000
"""Launches are late because of Python where this share (0-1) of the delay passes in no operator,
and so much of it for each kernel: more than it takes to get from one operator to the next.
"""
PYTHON_BETWEEN = (
    "Record with --stack to see the line. Move that Python out of the loop: prepare it before, keep"
    " checks and bookkeeping for every N steps, or work on whole tensors instead of parts."
    " torch.compile and CUDA Graphs help once the step has no Python between its operators."
)
SLOWER = 1.5
"""A host that takes this much longer for a launch than another rank's is slow by itself."""
SLOW_HOST = (
    "Find out what slows that rank's host: other programs on its cores, cores of another socket"
    " than the device's (numactl, taskset), a lower clock, or Python that only this rank runs. Then"
    " launch less: torch.compile, CUDA Graphs, fused or foreach operators."
)

NAMELESS = (*OUTSIDE, "queued", "fixed", "unknown", "unrecorded")
"""Causes of idle time that no detector looks for."""

WAITS = Removal(causes=("synchronisation",), waits=True)

LOAD_AHEAD = (
    "Load in worker processes and ahead of time (num_workers, prefetch_factor, persistent_workers),"
    " make each sample cheaper (decode at reduced size, cheaper transforms, pre-processed data)"
)
PIN_ONCE = (
    "Pin memory once, before the loop, or have the loader pin batches ahead (`pin_memory=True`):"
    " each call page-locks a new buffer."
)
HOST_MEMORY = re.compile(r"Host(?:Alloc|Free|Register)|MallocHost|FreeHost")
"""Calls for memory of the host's."""
MORE_AHEAD = (
    "The worker processes cannot keep up: make each sample cheaper (decode at reduced size, cheaper"
    " transforms, pre-processed data), start more of them while cores are free (a larger"
    " prefetch_factor helps only where some batches take far longer than others)"
)
PREPARE_AHEAD = (
    "Prepare the next batch while the device works on this one, in several threads or processes;"
    " make each request's preparation cheaper (decode at reduced size, cheaper transforms)"
)
BESIDE_THE_DEVICE = (
    "Run them in another thread while the device works on this batch; where other threads or"
    " programs need the cores, torch.set_num_threads(1) helps, since an operator that runs on"
    " several waits for the slowest."
)
ON_THE_DEVICE = "or decode on the device (DALI)"
FASTER_OPERATORS = (
    "Replace loops of small operators with one operator on a larger tensor, or use"
    " torch.compile; move other Python work out of the step."
)


def idle_for(cause: Cause, known_lines: str = "") -> Callable[[Evidence], list[Detection]]:
    """Return a detector of idle time of one cause, worded as the cause's row words it.

    `known_lines`: the advice where the capture holds lines of Python, if it differs.
    """

    def detect(seen: Evidence) -> list[Detection]:
        share = seen.idle_share(cause)
        if share < IDLE_SHARE:
            return []
        row = CAUSE_OF[cause]
        what = f"the device was idle while {row.sentence}"
        if seen.on_cpu:
            what = row.cpu_sentence or f"no operator ran while {row.sentence}"
        evidence = f"For {share:.1%} of the time {what}."
        # A server has no loader, and what it prepares for an emulated device stays on the host.
        advice = BESIDE_THE_DEVICE if seen.serving and cause == "host" else ""
        if seen.lines:
            # Nobody is told to record what the capture has.
            longest = max(seen.lines, key=lambda row: row.host_ns)
            elsewhere = f" Of the program's own functions, {longest.line} takes longest."
            if longest.exact:
                elsewhere = " No line of the program was recorded in that time."
            elif longest.line.endswith(" <module>"):  # the script itself, which tells nothing
                elsewhere = ""
            evidence += seen.line_of(cause) or elsewhere
            advice = known_lines or advice
        else:
            evidence += seen.line_of(cause) or _beside_the_thread(seen, cause)
        evidence += _in_other_ranks(seen, cause)
        # What operators of the host work on is not copied to it once they run on the device.
        removal = Removal(causes=(cause,), results=cause == "host")
        evidence += _beside_the_device(seen, removal, share)
        where = _on_one_rank(seen, cause, share)
        of_all = seen.names_a_part(cause)
        return [Detection(evidence, share, "", advice, where, removal, of_all)]

    return detect


def _beside_the_thread(seen: Evidence, cause: Cause) -> str:
    """Return a sentence on what another thread did for most of the time, which the one that
    launches may have waited for; "" without such.
    """
    parts = [part for use in seen.devices for part in use.gap_causes if part.cause == cause]
    beside = next((part.beside for part in parts if part.beside), "")
    if not beside:
        return ""
    return (
        f" For most of that another thread was in {beside}: if the thread that feeds the device"
        ' waited for it, mark that wait (`record_function("wait_batch")`) to see how long it is.'
    )


def _beside_the_device(seen: Evidence, removal: Removal, share: float) -> str:
    """Return a sentence where the host's work could stay as it is, if only the host did not wait
    for the device before it; "" where that would not do.
    """
    if not seen.syncs or seen.on_cpu:
        return ""
    without_waits = seen.gain(WAITS, 0.0)
    if without_waits - 1 < AS_GOOD * (seen.gain(removal, share) - 1):
        return ""
    worst = seen.syncs[0]
    caller = worst.line or worst.caused_by
    return (
        f" Not waiting for the device would do as well (at most {without_waits:.2f}x): the host"
        f" would then do this while the device works. Most waiting is in {worst.name}"
        f"{', from ' + caller if caller else ''}."
    )


def _on_one_rank(seen: Evidence, cause: Cause, share: float) -> str:
    """Return the end of a title that names the one rank that others wait for because of this cause,
    if that is most of what it costs; "" else.
    """
    late = [row for row in seen.late if row.doing == cause]
    if len({row.rank for row in late}) != 1 or 2 * seen.waiting_share(late) < share:
        return ""
    return f", on rank {late[0].rank}"


def _in_other_ranks(seen: Evidence, cause: Cause) -> str:
    """Return a sentence about the waiting for ranks that were idle for this cause; "" for none."""
    waited = seen.waited_for(cause) / seen.time_ns
    if waited < WAITED_SHARE:
        return ""
    late = sorted({row.rank for row in seen.late if row.doing == cause})
    which = f"rank {late[0]}" if len(late) == 1 else f"ranks {list_numbers(late)} in turn"
    return (
        f" {waited:.0%} of the time is other ranks' waiting in collectives for {which}, which did"
        " so: communication is the symptom."
    )


def is_reported(seen: Evidence, cause: Cause) -> bool:
    """Return True if a detector of idle time reports this cause, and with it the waiting of other
    ranks.
    """
    if cause == "launch":
        return bool(late_launches(seen) or python_overhead(seen))
    return cause not in NAMELESS and seen.idle_share(cause) >= IDLE_SHARE


def late_input(seen: Evidence) -> list[Detection]:
    """Detect a thread that waits for, or prepares, the next batch before the device gets it."""
    share = seen.idle_share("input")
    if share < IDLE_SHARE:
        return []
    title, state, ahead = "", "the device did no work", LOAD_AHEAD
    thread = "the thread that feeds it" if seen.serving else "the main thread"
    loader = seen.loader
    if loader is not None:
        ahead = MORE_AHEAD
    advice = f"{ahead}." if seen.emulated else f"{ahead} {ON_THE_DEVICE}."
    if seen.on_cpu:  # a CPU that prepares input is not idle
        title, state = "The model waits for data", "no operator of the model ran"
        advice = f"{ahead}, and give the loader and the model separate cores."
    elif seen.serving:
        advice = f"{PREPARE_AHEAD}." if seen.emulated else f"{PREPARE_AHEAD}, {ON_THE_DEVICE}."
    if seen.modelled_host:
        advice += " This host has a price for each way to load: the lab's README lists them."
    if loader is not None and loader.crowded:
        advice = (
            f"Use fewer workers: {loader.workers} share {loader.cores} cores, and each takes time"
            f" to start; num_workers={max(loader.cores - 1, 1)} leaves one for the model."
        )
    evidence = (
        f"For {share:.1%} of the time {state} while {thread} waited for or prepared the next batch."
    )
    if loader is not None and loader.starting_ns >= STARTING_SHARE * seen.time_ns:
        evidence += (
            f" Starting {loader.workers} workers on {loader.cores} cores"
            f" {'once' if loader.starts == 1 else f'{loader.starts} times'} took"
            f" {loader.starting_ns / seen.time_ns:.0%} of the time."
        )
        if not loader.kept:
            advice += " persistent_workers=True starts them once instead of in every epoch."
    evidence += seen.line_of("input") + _in_other_ranks(seen, "input")
    where = _on_one_rank(seen, "input", share)
    removal, of_all = Removal(causes=("input",)), seen.names_a_part("input")
    return [Detection(evidence, share, title, advice, where, removal, of_all)]


def late_launches(seen: Evidence) -> list[Detection]:
    """Detect a host that launches one kernel after another, each too late."""
    if seen.on_cpu:
        return []
    share = seen.idle_share("launch")
    use = max(seen.launches, key=lambda u: u.kernels, default=None)
    if share < IDLE_SHARE or use is None or _hosts_are_ahead(seen):
        return []
    if slow := _slow_host(seen, share):
        return [slow]
    count = f"{use.kernels} kernels"
    if seen.steps:
        count = f"{use.kernels_per_step:.0f} kernels per step"
    evidence = (
        f"For {share:.1%} of the time the device was idle while the host launched kernels one by"
        f" one, each too late: {count}, half of them under"
        f" {use.median_kernel_ns / 1e3:.1f} µs, {use.short_share:.0%} under 10 µs. `nvidia-smi`"
        " would call it busy: to it, one kernel makes a whole sampling period busy."
    )
    title, advice = "", ""
    if between := _python_between(seen):
        title, advice = "Python between launches holds up the device", PYTHON_BETWEEN
        evidence += between
    evidence += seen.line_of("launch") + _in_other_ranks(seen, "launch")
    where, removal = _on_one_rank(seen, "launch", share), Removal(causes=("launch",))
    of_all = seen.names_a_part("launch")
    return [Detection(evidence, share, title, advice, where, removal, of_all)]


def _python_between(seen: Evidence) -> str:
    """Return a sentence on the Python that makes launches late, where it is most of what does; ""
    else, and where no operators were recorded that would tell.
    """
    parts = [part for use in seen.devices for part in use.gap_causes if part.cause == "launch"]
    late = sum(part.idle_ns for part in parts)
    outside = sum(part.nowhere_ns for part in parts)
    kernels = sum(use.kernels for use in seen.launches)
    if (
        not seen.operators
        or seen.lines
        or outside < max(BETWEEN_SHARE * late, BETWEEN_NS * kernels)
    ):
        return ""
    return (
        f" For {outside / late:.0%} of that the host ran no operator: Python was between the"
        f" launches, {outside / kernels / 1e3:.0f} µs for each kernel."
    )


def _hosts_are_ahead(seen: Evidence) -> bool:
    """Return True if every host needs less time for its launches than its devices for their work,
    and would be ahead: whatever lets the queue run dry is to blame then, and is found by itself.
    """
    launching: Counter[int] = Counter()
    working: Counter[int] = Counter()
    for use in seen.devices:
        launching[use.rank] += use.launching_ns
        working[use.rank] += use.busy_ns
        # A device that only waits for other ranks does no work of its own.
        if seen.collective_waits is not None:
            working[use.rank] -= use.exposed_communication_ns
    if seen.collective_waits is not None:
        transfer_ns = seen.collective_waits.transfer_ns // len(working)
        working.update(dict.fromkeys(list(working), transfer_ns))
    return all(launching[rank] < ns for rank, ns in working.items())


def _slow_host(seen: Evidence, share: float) -> Detection | None:
    """Return the one rank that the others wait for because its host takes longer for a launch than
    theirs, if that is most of what late launches cost.
    """
    late = [row for row in seen.late if row.doing == "launch"]
    where = _on_one_rank(seen, "launch", share)
    if not where:
        return None
    kernels: Counter[int] = Counter()
    launching: Counter[int] = Counter()
    for use in seen.launches:
        kernels[use.rank] += use.kernels
    for device in seen.devices:
        launching[device.rank] += device.launching_ns
    each = {rank: launching[rank] / count for rank, count in kernels.items() if count}
    (rank,) = {row.rank for row in late}
    slow, others = each.pop(rank, 0.0), sorted(each.values())
    if not others or slow < SLOWER * others[len(others) // 2]:
        return None
    waiting = seen.waiting_share(late)
    evidence = (
        f"Ranks waited {seen.waited_for('launch') / 1e6:.2f} ms for rank {rank} to join a"
        f" collective, {waiting:.0%} of the time of each that waits, while its host launched"
        f" kernels too late: {slow / 1e3:.0f} µs each, where the others take"
        f" {others[len(others) // 2] / 1e3:.0f} µs. Communication is the symptom."
    )
    return Detection(evidence, seen.removable_share(late), advice=SLOW_HOST, where=where)


def _overhead(seen: Evidence) -> tuple[float, float, list[OperatorRow]]:
    """Return (share of Python between operators, share of small operators' calls, these rows)."""
    small = [row for row in seen.operators if row.self_ns < SMALL_NS * row.calls]
    calling = sum(row.self_ns for row in small) / seen.time_ns
    return seen.idle_share("launch"), calling, small


def python_overhead(seen: Evidence) -> list[Detection]:
    """Detect, without an accelerator, Python between operators and calls of operators that have
    next to nothing to compute.
    """
    if not seen.on_cpu:
        return []
    between, calling, small = _overhead(seen)
    if between < IDLE_SHARE and calling < SMALL_SHARE:
        return []
    evidence = (
        f"For {between:.0%} of the time no operator ran: Python was between one and the next."
    )
    if small:
        calls, largest = sum(row.calls for row in small), max(small, key=lambda row: row.self_ns)
        evidence += (
            f" Another {calling:.0%} went to {calls} calls of operators that take under"
            f" {SMALL_NS / 1e3:.0f} µs on average, most of all to {largest.name}."
        )
    _, where = repeated_calls(seen)
    advice = ""
    if not seen.lines:
        advice = f"{FASTER_OPERATORS} Record with --stack to see the line."
    evidence = f"{evidence} {where}".rstrip()
    return [Detection(evidence, between + calling, advice=advice)]


def many_calls(seen: Evidence) -> list[Detection]:
    """Detect, without an accelerator, a function that calls operator after operator, where calling
    them is not the bottleneck as a whole.
    """
    if not seen.on_cpu:
        return []
    between, calling, _ = _overhead(seen)
    site, where = repeated_calls(seen)
    if between >= IDLE_SHARE or calling >= SMALL_SHARE or site < SITE_SHARE:
        return []
    return [Detection(where, site)]


def repeated_calls(seen: Evidence) -> tuple[float, str]:
    """Return (share of the time, a sentence) of the function whose lines call most operators, each
    many times per step, with the operators' backward; (0, "") if there is none.
    """
    steps = max(seen.steps, 1)
    sites: dict[str, list[LineRow]] = {}
    for row in seen.lines:
        often = row.operators >= MANY_CALLS * steps
        if row.exact and often and row.operator_ns < LONG_CALL_NS * row.operators:
            # "file.py(line): function" without the line
            site = row.line.partition("(")[0] + row.line.rpartition(":")[2]
            sites.setdefault(site, []).append(row)
    if not sites:
        return 0.0, ""
    costs = {
        site: sum(row.host_ns + row.backward_ns for row in rows) for site, rows in sites.items()
    }
    costliest = max(costs, key=costs.__getitem__)
    rows = sites[costliest]
    share = costs[costliest] / seen.time_ns
    lines = sorted(row.line for row in rows)
    others = ""
    if len(lines) > 1:
        others = f" and {counted(len(lines) - 1, 'more line')} of it"
    calls = sum(row.operators for row in rows) / steps
    each = " per step" if seen.steps else ""
    back = sum(row.backward_ns for row in rows) / seen.time_ns
    sentence = (
        f"{lines[0]}{others} calls {calls:.0f} operators{each}: {share:.0%} of the time,"
        f" {back:.0%} of it in their backward."
    )
    return share, sentence


def waits(seen: Evidence) -> list[Detection]:
    """Detect a device that runs dry because the host had waited for it."""
    share = seen.idle_share("synchronisation")
    if share < IDLE_SHARE:
        return []
    where, of_all = "", False
    if seen.syncs:
        worst = seen.syncs[0]
        often = counted(worst.calls, "call")
        if seen.steps:
            each = f"{worst.calls_per_step:.1f}".removesuffix(".0")
            often = f"{each} {'call' if each == '1' else 'calls'} per step"
        where = f"; most waiting is in {worst.name}, {often}"
        caller = worst.line or worst.caused_by
        if caller:
            where += f", from {caller}"
        waits_ns = waits_by_line(seen.syncs)
        of_all = waits_ns[caller or worst.name] < NEARLY_ALL * waits_ns.total()
    evidence = (
        f"The device was idle for {share:.1%} of the time after the host had waited for it{where}."
    )
    return [Detection(evidence, share, removal=WAITS, of_all=of_all)]


def waiting_devices(seen: Evidence) -> list[Detection]:
    """Detect devices of one process that take turns, as the stages of a pipeline without enough
    parts of a batch do.
    """
    share = seen.idle_share("devices")
    if share < IDLE_SHARE:
        return []
    evidence = (
        f"For {share:.0%} of the devices' time, work that had been launched waited for another"
        " device of its process: they take turns instead of working side by side."
    )
    return [Detection(evidence, share, removal=Removal(devices=True))]


def driver_allocations(seen: Evidence) -> list[Detection]:
    """Detect cudaMalloc and cudaFree: they wait for the device and the driver, and a caching
    allocator makes none after warm-up.
    """
    calls = max((use.driver_calls for use in seen.memory), default=0)
    share = seen.idle_share("allocation")
    often = bool(seen.steps) and calls >= 2 * seen.steps
    if not often and share < IDLE_SHARE:
        return []
    names = [f"{count} calls of {name}" for name, count in seen.driver_calls.items()][:4]
    evidence = (
        f"{', '.join(names)} in {seen.steps} steps: the program goes to the driver for memory in"
        " the loop."
    )
    if not often:
        evidence = (
            f"For {share:.1%} of the time the device was idle while the host was asking the driver"
            f" for memory, or giving it back{': ' * bool(names)}{', '.join(names)}."
        )
    return [
        Detection(
            evidence,
            share,
            advice=PIN_ONCE if names and all(map(HOST_MEMORY.search, seen.driver_calls)) else "",
            removal=Removal(causes=("allocation",)),
        )
    ]
