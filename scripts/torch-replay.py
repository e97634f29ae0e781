#!/usr/bin/env python3
"""torch-replay.py TRACE [--repeat N]: a trace on PyTorch's caching allocator, as it stands.

Prints one JSON object with the names that `millpond replay --json` has for the same things. Blocks that
one stream uses are taken and given back by the allocator's raw functions; those that other streams use
are tensors, since only those can be told of uses (`record_stream`). Devices that are not there share
those that are, in turn. Times hold Python's own share, which is stated as `python_ns_per_op`: the same
loop with functions that do nothing.
"""
import argparse
import ctypes
import ctypes.util
import gc
import json
import os
import shutil
import statistics
import subprocess
import sys
import time


def text_of(path):
    """The lines of a trace, compressed or not."""
    with open(path, "rb") as f:
        data = f.read()
    if data[:4] == b"\x28\xb5\x2f\xfd":
        data = decompressed(path, data)
    return data.decode().splitlines()


def decompressed(path, data):
    """By whatever this machine has: a program, Python's own module, or the library."""
    if shutil.which("zstd"):
        return subprocess.run(["zstd", "-dc", path], check=True, capture_output=True).stdout
    for module in ("compression.zstd", "pyzstd"):
        try:
            return __import__(module, fromlist=["decompress"]).decompress(data)
        except ImportError:
            pass
    try:
        import io
        import zstandard
        return zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data)).read()
    except ImportError:
        pass
    name = ctypes.util.find_library("zstd")
    if not name:
        sys.exit(f"{path}: compressed, and nothing here reads zstd")
    return by_library(ctypes.CDLL(name), data)


def by_library(zstd, data):
    """Frame by frame into larger and larger buffers: frames need not say how large they are."""
    zstd.ZSTD_decompress.restype = ctypes.c_size_t
    zstd.ZSTD_decompress.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t]
    room = 16 * len(data) + (1 << 20)
    while True:
        out = ctypes.create_string_buffer(room)
        size = zstd.ZSTD_decompress(out, room, data, len(data))
        if not zstd.ZSTD_isError(ctypes.c_size_t(size)):
            return out.raw[:size]
        if room > 1 << 32:
            sys.exit("a trace that cannot be decompressed")
        room *= 4


def compiled(lines, present):
    """(operations, streams, shared, steps): ids of blocks that other streams use are in `shared`."""
    devices, streams, ops, shared, steps = {}, {}, [], set(), 0
    home = {}

    def stream(device, number):
        index = devices.setdefault(device, len(devices)) % present
        return streams.setdefault((device, number), (len(streams), index))[0]

    named = sorted({int(t[2]) for t in map(str.split, lines) if t and t[0] == "a"})
    for device in named:
        devices[device] = len(devices)
    for line in lines:
        t = line.split()
        if not t or t[0] == "#":
            continue
        if t[0] == "a":
            block, device, size = int(t[1]), int(t[2]), int(t[4])
            home[block] = device
            ops.append(("a", block, stream(device, int(t[3])), size))
        elif t[0] == "f":
            ops.append(("f", int(t[1]), 0, 0))
        elif t[0] == "u":
            block = int(t[1])
            shared.add(block)
            ops.append(("u", block, stream(home[block], int(t[2])), 0))
        elif t[0] == "w":
            device = int(t[1])
            ops.append(("w", 0, stream(device, int(t[2])), stream(device, int(t[3]))))
        elif t[0] == "x":
            ops.append(("w", 0, stream(int(t[1]), int(t[2])), stream(int(t[3]), int(t[4]))))
        elif t[0] == "m" and t[1] == "step":
            steps += 1
    return ops, [index for _, index in streams.values()], shared, steps


def replay(ops, shared, alloc, free, make, use, wait):
    """One pass; returns refused allocations. What lives on is freed, outside the time returned."""
    blocks, refused = {}, 0
    start = time.perf_counter_ns()
    for kind, block, stream, more in ops:
        if kind == "a":
            try:
                blocks[block] = make(stream, more) if block in shared else alloc(stream, more)
            except Exception as error:  # torch's is a RuntimeError, of one name or another
                if "out of memory" not in str(error).lower():
                    raise
                refused += 1
        elif kind == "f":
            held = blocks.pop(block, None)
            if held is not None and block not in shared:
                free(held)
            held = None
        elif kind == "u":
            if block in blocks:
                use(blocks[block], stream)
        else:
            wait(stream, more)
    took = time.perf_counter_ns() - start
    for block, held in blocks.items():
        if block not in shared:
            free(held)
    blocks.clear()
    return refused, took


def main():
    ap = argparse.ArgumentParser(usage=__doc__)
    ap.add_argument("trace")
    ap.add_argument("--repeat", type=int, default=3)
    o = ap.parse_args()
    import torch

    present = torch.cuda.device_count()
    lines = text_of(o.trace)
    ops, stream_devices, shared, steps = compiled(lines, present)
    used = sorted(set(stream_devices))
    streams = [torch.cuda.Stream(device=device) for device in stream_devices]
    raw = [stream.cuda_stream for stream in streams]
    raw_alloc = torch.cuda.caching_allocator_alloc
    free = torch.cuda.caching_allocator_delete

    def alloc(stream, size):
        return raw_alloc(size, stream_devices[stream], raw[stream])

    def make(stream, size):
        with torch.cuda.stream(streams[stream]):
            return torch.empty(size, dtype=torch.uint8, device=f"cuda:{stream_devices[stream]}")

    def use(tensor, stream):
        tensor.record_stream(streams[stream])

    def wait(waiter, signaller):
        streams[waiter].wait_stream(streams[signaller])

    calls = sum(kind in "af" for kind, *_ in ops)
    gc.disable()
    _, nothing = replay(ops, shared, lambda *_: 1, lambda _: None, lambda *_: 1, lambda *_: None,
                        lambda *_: None)
    for device in used:
        torch.cuda.reset_peak_memory_stats(device)
    refused, cold = replay(ops, shared, alloc, free, make, use, wait)
    stats = {device: torch.cuda.memory_stats(device) for device in used}
    warm = [replay(ops, shared, alloc, free, make, use, wait)[1] for _ in range(1, o.repeat)]
    for device in used:
        torch.cuda.synchronize(device)

    def peak(what):
        return [stats[device].get(f"{what}.all.peak", 0) for device in used]

    requested = peak("requested_bytes")
    print(json.dumps({
        "trace": os.path.basename(o.trace).split(".")[0],
        "mechanism": "torch",
        "torch": torch.__version__,
        "conf": os.environ.get("PYTORCH_CUDA_ALLOC_CONF", ""),
        "ops": len(ops),
        "steps": steps,
        "oom": refused,
        "devices": [{"ordinal": d, "peak_reserved": r, "peak_requested": q}
                    for d, r, q in zip(used, peak("reserved_bytes"), requested)],
        "peak_live_bytes": sum(requested),
        "peak_reserved_bytes": sum(peak("reserved_bytes")),
        "cold_ns_per_op": cold / calls,
        "python_ns_per_op": nothing / calls,
        "ns_per_op": statistics.median(warm) / calls if warm else None,
    }, separators=(",", ":")))


if __name__ == "__main__":
    main()
