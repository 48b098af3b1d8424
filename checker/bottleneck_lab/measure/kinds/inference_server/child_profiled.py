"""Run the learner's inference server in the learner's own folder, for `lab run` and `lab profile`,
with a model on the verifier's device.
"""

from __future__ import annotations

import argparse
import socket
import sys

from bottleneck_lab.measure.channel.messages import Ready
from bottleneck_lab.measure.channel.wire import Arena, Channel
from bottleneck_lab.measure.kinds.http_server.child_profiled import Served, controlled, run_server
from bottleneck_lab.measure.kinds.inference_server.child import gateway_of, server_parser
from bottleneck_lab.measure.kinds.inference_server.learner_api import Model
from bottleneck_lab.measure.kinds.profiling import child_parser
from bottleneck_lab.measure.worker import load_module


class ServedWithModel(Served):
    """The learner's own inference server."""

    def serve(self) -> None:
        import torch

        module = load_module(self.options.entry)
        channel = Channel(socket.socket(fileno=self.options.socket))
        channel.send(Ready())
        model = Model(channel, Arena.attach(self.options.arena), torch.profiler.record_function)
        module.serve(socket.socket(fileno=self.options.listener), model)


class ServedByTriton(Served):
    """The learner's models, on a Triton Inference Server."""

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__(options)
        self._gateway = gateway_of(options, captured=options.trace is not None or options.nvtx)

    def serve(self) -> None:
        self._gateway.serve(socket.socket(fileno=self.options.listener))

    def prepare(self) -> None:
        """Do nothing: each model prepares its own capture."""

    def capture(self, seconds: float) -> None:
        self._gateway.capture(seconds, self.options.trace)

    def set_constant(self, name: str, value: int) -> None:  # noqa: ARG002 - there is none but the largest batch
        self._gateway.set_max_batch(value)

    def end(self) -> None:
        sys.stdout.write(f"{self._gateway.statistics()}\n")
        sys.stdout.flush()
        self._gateway.close()


def main() -> None:
    """Entry point."""
    options = controlled(server_parser(child_parser())).parse_args()
    run_server(ServedByTriton(options) if options.environment else ServedWithModel(options))


if __name__ == "__main__":
    main()
