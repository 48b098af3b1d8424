"""The older profiler of torch.autograd, its trace compressed by hand, and a range for every layer of the network."""

import gzip
from contextlib import contextmanager

import torch
import workload
from torch.autograd.profiler import profile, record_function


@contextmanager
def ranges(model):
    """Every layer marks where it begins and ends."""
    open_, handles = [], []

    def begin(name):
        def hook(_layer, _inputs):
            open_.append(record_function(name).__enter__())

        return hook

    def end(_layer, _inputs, _output):
        open_.pop().__exit__(None, None, None)

    for name, layer in model.named_children():
        handles += [layer.register_forward_pre_hook(begin(name)), layer.register_forward_hook(end)]
    yield
    for handle in handles:
        handle.remove()


def record(model, images, passes, trace):
    with torch.inference_mode(), ranges(model):
        for _ in range(3):
            model(images)
        if images.is_cuda:
            torch.cuda.synchronize()
        with profile(use_device="cuda" if images.is_cuda else None, record_shapes=True) as profiler:
            for _ in range(passes):
                model(images)
            if images.is_cuda:
                torch.cuda.synchronize()
    plain = trace.with_name("plain.json")
    profiler.export_chrome_trace(str(plain))
    trace.write_bytes(gzip.compress(plain.read_bytes()))
    plain.unlink()


if __name__ == "__main__":
    workload.main(record)
