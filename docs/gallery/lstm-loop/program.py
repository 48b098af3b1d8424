"""A sequence model stepped through time by hand, as many tutorials write it."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
cell, head = nn.LSTMCell(32, 32), nn.Linear(32, 8)
optimizer = torch.optim.Adam([*cell.parameters(), *head.parameters()])

for _ in range(8):
    x, y = torch.randn(16, 24, 32), torch.randint(8, (16,))
    h = c = torch.zeros(16, 32)
    for t in range(24):
        h, c = cell(x[:, t], (h, c))
    loss = nn.functional.cross_entropy(head(h), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
