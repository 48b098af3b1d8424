"""Write poems with a decoder, greedily, one token at a time."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.profiler import profile, schedule

VOCABULARY = 8_000


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.attention_norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)
        self.grow, self.shrink = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def split(self, x):
        return x.view(x.shape[0], x.shape[1], self.heads, -1).transpose(1, 2)

    def forward(self, x, past):
        normed = self.attention_norm(x)
        q, k, v = self.split(self.q(normed)), self.split(self.k(normed)), self.split(self.v(normed))
        if past is not None:
            k, v = torch.cat([past[0], k], dim=2), torch.cat([past[1], v], dim=2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=past is None)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.shrink(F.gelu(self.grow(self.mlp_norm(x)))), (k, v)


class Poet(nn.Module):
    def __init__(self, width=1024, depth=12, heads=16):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens, past=None):
        x, present = self.embed(tokens), []
        for number, layer in enumerate(self.layers):
            x, kept = layer(x, past[number] if past else None)
            present.append(kept)
        return self.norm(x[:, -1]) @ self.embed.weight.t(), present


@torch.inference_mode()
def main(lines=64):
    device = torch.device("cuda")
    poet = Poet().to(device, torch.bfloat16).eval()
    tokens = torch.randint(VOCABULARY, (lines, 512), device=device)
    end = torch.zeros(lines, dtype=torch.bool, device=device)
    with profile(schedule=schedule(wait=1, warmup=2, active=6), with_stack=True) as prof:
        for _ in range(400):
            scores, past = poet(tokens)
            chosen = scores.argmax(dim=-1, keepdim=True)
            tokens = torch.cat([tokens, chosen], dim=1)
            end |= chosen.squeeze(1) == 2
            if end.all():
                break
            prof.step()


if __name__ == "__main__":
    main()
