"""Pretrain a language model on eight machines' worth of books, as the guides say one should."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import profile, schedule

VOCABULARY = 8_192


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
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
        x = x + self.out(y.reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


class Model(nn.Module):
    def __init__(self, width=1024, depth=6, heads=16):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.layers = nn.Sequential(*(Layer(width, heads) for _ in range(depth)))
        self.head = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, tokens):
        return self.head(self.layers(self.embed(tokens)))


def main(accumulate=2):
    dist.init_process_group("nccl")
    device = torch.device("cuda", 0)
    model = Model().to(device, torch.bfloat16)
    model = DistributedDataParallel(model, device_ids=[0], gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1)
    books = torch.randint(VOCABULARY, (64, 1025), device=device)
    smoothed = torch.zeros((), device=device)

    with profile(schedule=schedule(wait=1, warmup=1, active=3)) as prof:
        for step in range(100_000):
            tokens = books[torch.randint(64, (24,), device=device)]
            more = books[torch.randint(64, (24,), device=device)]
            with model.no_sync():
                scores = model(tokens[:, :-1])
                loss = F.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())
                (loss / accumulate).backward()
            scores = model(more[:, :-1])
            loss = F.cross_entropy(scores.flatten(0, 1), more[:, 1:].flatten())
            (loss / accumulate).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            smoothed = torch.lerp(smoothed, loss.detach().float(), 0.05)
            if step % 50 == 49 and dist.get_rank() == 0:
                print(f"{step + 1}: {smoothed.item():.3f}")
            prof.step()


if __name__ == "__main__":
    main()
