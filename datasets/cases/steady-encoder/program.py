"""Embed a library of abstracts with an encoder, batch after batch."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.profiler import profile, schedule
from torch.utils.data import DataLoader, Dataset

WORDS = 32_000


class Abstracts(Dataset):
    def __init__(self, count=200_000, length=256):
        self.count, self.length = count, length

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return self.tokens(index)

    def tokens(self, index):
        return torch.full((self.length,), index % WORDS)


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.qkv(self.first(x)).view(batch, length, 3, self.heads, -1)
        q, k, v = (part.transpose(1, 2) for part in parts.unbind(dim=2))
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2)
        x = x + self.out(y.reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.second(x))))


class Encoder(nn.Module):
    def __init__(self, width=1024, depth=12, heads=16):
        super().__init__()
        self.embed = nn.Embedding(WORDS, width)
        self.layers = nn.Sequential(*(Layer(width, heads) for _ in range(depth)))

    def forward(self, tokens):
        return F.normalize(self.layers(self.embed(tokens)).mean(dim=1).float(), dim=-1)


@torch.inference_mode()
def main():
    device = torch.device("cuda")
    encoder = Encoder().to(device, torch.bfloat16).eval()
    loader = DataLoader(Abstracts(), batch_size=128, num_workers=4, pin_memory=True)
    vectors = []
    with profile(schedule=schedule(wait=1, warmup=1, active=6), with_stack=True) as prof:
        for number, tokens in enumerate(loader):
            vectors.append(encoder(tokens.to(device, non_blocking=True)))
            if number % 50 == 49:
                print(f"{number + 1} batches, {torch.cat(vectors).shape[0]} abstracts")
            prof.step()


if __name__ == "__main__":
    main()
