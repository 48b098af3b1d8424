"""Nothing is served from here: the models in models/ are, by a Triton Inference Server."""

SERVER = "triton"
