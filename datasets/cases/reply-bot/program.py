"""Answer chat messages with a small decoder that keeps its keys and values."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.profiler import profile, schedule

VOCABULARY, LONGEST = 24_000, 768


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x, keys, values, at):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).chunk(3, dim=-1)
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in (q, k, v))
        keys.narrow(2, at, length).copy_(k)
        values.narrow(2, at, length).copy_(v)
        y = F.scaled_dot_product_attention(q, keys, values)
        x = x + self.project(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Bot(nn.Module):
    def __init__(self, width=768, depth=16, heads=12):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.shape = (heads, LONGEST, width // heads)

    def new_cache(self, batch, device):
        return [
            [torch.zeros(batch, *self.shape, dtype=torch.float16, device=device) for _ in range(2)]
            for _ in self.blocks
        ]

    def forward(self, tokens, cache, at):
        x = self.embed(tokens)
        for block, (keys, values) in zip(self.blocks, cache):
            x = block(x, keys, values, at)
        return F.linear(self.norm(x[:, -1]), self.embed.weight)


def sample(scores, temperature=0.8):
    probabilities = torch.softmax(scores.float() / temperature, dim=-1)
    return (probabilities / torch.empty_like(probabilities).exponential_()).argmax(-1, keepdim=True)


@torch.inference_mode()
def main(batch=4):
    device = torch.device("cuda")
    bot = Bot().to(device).half().eval()
    cache = bot.new_cache(batch, device)
    token = torch.randint(VOCABULARY, (batch, 1), device=device)
    reply = []
    with profile(schedule=schedule(wait=2, warmup=2, active=8), with_stack=True) as prof:
        for at in range(LONGEST):
            token = sample(bot(token, cache, at))
            reply.append(token)
            if (token == 0).all().item():
                break
            prof.step()
    return torch.cat(reply, dim=1)


if __name__ == "__main__":
    main()
