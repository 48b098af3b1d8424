"""Tune an encoder on clinical notes of very different lengths."""

import random

import torch
import torch.nn.functional as F
from torch import nn
from torch.profiler import profile, schedule
from torch.utils.data import DataLoader, Dataset

WORDS, LONGEST = 28_000, 512


class Notes(Dataset):
    """Most notes are a few sentences; some are a whole history."""

    def __init__(self, count=10_000):
        draw = random.Random(3)
        self.lengths = [min(LONGEST, 20 + int(draw.expovariate(1 / 45))) for _ in range(count)]

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, index):
        return self.tokens(index), index % 12

    def tokens(self, index):
        return torch.ones(self.lengths[index], dtype=torch.long)


def collate(notes):
    tokens, labels = zip(*notes)
    batch = torch.zeros(len(tokens), LONGEST, dtype=torch.long)
    for row, note in enumerate(tokens):
        batch[row, : len(note)] = note
    return batch, torch.tensor(labels)


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norms[0](x)).chunk(3, dim=-1)
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2)
        x = x + self.out(y.reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


class Coder(nn.Module):
    def __init__(self, width=768, depth=8, heads=12, codes=12):
        super().__init__()
        self.embed = nn.Embedding(WORDS, width)
        self.layers = nn.Sequential(*(Layer(width, heads) for _ in range(depth)))
        self.codes = nn.Linear(width, codes)

    def forward(self, tokens):
        return self.codes(self.layers(self.embed(tokens)).mean(dim=1))


def main():
    device = torch.device("cuda")
    loader = DataLoader(
        Notes(), 128, shuffle=True, num_workers=6, pin_memory=True, collate_fn=collate
    )
    model = Coder().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5)
    with profile(schedule=schedule(wait=1, warmup=1, active=4), with_stack=True) as prof:
        for step, (tokens, codes) in enumerate(loader):
            tokens, codes = (part.to(device, non_blocking=True) for part in (tokens, codes))
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = F.cross_entropy(model(tokens), codes)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            if step % 100 == 0:
                print(step, loss.item())
            prof.step()


if __name__ == "__main__":
    main()
