"""Two layers of a transformer, trained on one batch after the other."""

import torch
from torch import nn
from torch.profiler import record_function

torch.manual_seed(0)
layer = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True)
model = nn.Sequential(
    nn.Embedding(1000, 256), nn.TransformerEncoder(layer, 2), nn.Linear(256, 1000)
)
optimizer = torch.optim.AdamW(model.parameters())

for _ in range(6):
    with record_function("data"):
        tokens = torch.randint(1000, (8, 129))
    with record_function("forward"):
        logits = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    with record_function("backward"):
        optimizer.zero_grad()
        loss.backward()
    with record_function("optimizer"):
        optimizer.step()
