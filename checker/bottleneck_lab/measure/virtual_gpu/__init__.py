"""A virtual GPU: an emulated accelerator that PyTorch programs launch to, owned by the verifier.

The program sees a torch device called `virtual`; its tensors live in the verifier's engine process,
which computes every operator on the CPU and advances a logical clock by what the modelled GPU would
take. The program holds handles only: it cannot read a value without a transfer that the engine
counts.

`backend` is the program's side, with its `tensor`, `calls`, errors of a `backward` pass, `pinned`
memory, `autocast`, `imports` and `module` (`torch.virtual`). `engine` is the verifier's, with the
`templates` of calls that it knows. `codec` is what travels between them, in `frames`; `books` are
what `owner` reads of a run. `clock`, `memory` and `arithmetic` are the models, `spec` their
figures.
"""
