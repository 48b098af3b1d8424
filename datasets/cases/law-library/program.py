"""Continue the pretraining of a language model on legal texts, sharded over four machines."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.profiler import profile, schedule

VOCABULARY = 20_000


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
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


class LawModel(nn.Module):
    def __init__(self, width=1024, depth=8, heads=16):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(depth))
        self.head = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def main():
    dist.init_process_group("nccl")
    device = torch.device("cuda", 0)
    model = LawModel().to(device, torch.bfloat16)
    for layer in model.layers:
        fully_shard(layer, reshard_after_forward=True)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=0.1)
    texts = torch.randint(VOCABULARY, (12, 1025), device=device)

    with profile(schedule=schedule(wait=1, warmup=1, active=2)) as prof:
        for step in range(10_000):
            scores = model(texts[:, :-1])
            loss = F.cross_entropy(scores.flatten(0, 1).float(), texts[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            if step % 100 == 0 and dist.get_rank() == 0:
                print(step, loss.item())
            prof.step()


if __name__ == "__main__":
    main()
