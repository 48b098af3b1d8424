"""The model and its data: a tagger of token sequences of different lengths. Not to be edited."""

import os

import torch
from torch import nn
from torch.nn.functional import gelu
from torch.utils.data import DataLoader, TensorDataset

VOCABULARY, TAGS, WRONG_TAGS = 256, 12, 0.2
LONGEST, WIDTH, LAYERS = 48, 64, 6
BATCH, STEPS, LOG_EVERY = 32, 30, 10
FAINTEST, WORKERS = 0.3, 1
# A real GPU trains a wider model on longer sequences. The emulated device is slower in proportion.
if os.environ.get("LAB_DEVICE", "cuda" if torch.cuda.is_available() else "virtual") == "cuda":
    LONGEST, WIDTH, BATCH, STEPS = 256, 256, 64, 150
# Of a check's five trainings the first is timed; the others look for what goes wrong now and then.
# The fainter the tokens' vectors, the more evenly the largest gradient is in any of the layers. A
# loader's worker would take longer to start than all else.
elif os.environ.get("LAB_SIZE") == "small":
    WIDTH, LAYERS, BATCH, STEPS = 32, 2, 8, 44
    FAINTEST, WORKERS = 0.03, 0


class Block(nn.Module):
    """LayerNorm, two layers and a residual: (batch, tokens, width) to the same. GELU has no kink,
    so rounding stays rounding.
    """

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(gelu(self.up(self.norm(x))))


class Tagger(nn.Module):
    """Token numbers (batch, tokens) to scores (batch, tokens, TAGS)."""

    def __init__(self):
        super().__init__()
        vectors = FAINTEST ** torch.rand(()) * torch.randn(VOCABULARY, WIDTH)
        self.embed = nn.Embedding.from_pretrained(vectors, freeze=False)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.head = nn.Linear(WIDTH, TAGS)
        # Each block starts with a say of its own, so the largest gradient may be in any of them.
        with torch.no_grad():
            for block in self.blocks:
                block.norm.weight *= 0.08 ** torch.rand(())

    def forward(self, tokens):
        return self.head(self.blocks(self.embed(tokens)))


class Data:
    """Sequences whose tags follow from their tokens, but for some that are wrong; `seed` decides
    which.
    """

    def __init__(self, seed, steps=STEPS):
        rng = torch.Generator().manual_seed(seed)
        count = steps * BATCH
        self.tokens = torch.randint(VOCABULARY, (count, LONGEST), generator=rng)
        table = torch.randint(TAGS, (VOCABULARY,), generator=rng)
        wrong = torch.rand(self.tokens.shape, generator=rng) < WRONG_TAGS
        anything = torch.randint(TAGS, self.tokens.shape, generator=rng)
        self.tags = torch.where(wrong, anything, table[self.tokens])
        self.lengths = torch.randint(LONGEST // 2, LONGEST, (count,), generator=rng)

    def batches(self, pin_memory=False):
        """Batches of (tokens, tags, lengths) in the host's memory: (BATCH, LONGEST) twice, and
        (BATCH,).

        With `pin_memory`, a thread of the loader pins them ahead.
        """
        dataset = TensorDataset(self.tokens, self.tags, self.lengths)
        workers = WORKERS if pin_memory else 0
        return DataLoader(dataset, BATCH, num_workers=workers, pin_memory=pin_memory)
