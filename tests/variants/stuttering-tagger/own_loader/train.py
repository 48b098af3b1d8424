"""Train the tagger; log loss, accuracy and the largest gradient norm every LOG_EVERY steps."""

import os

import torch
from recipe import BATCH, LOG_EVERY, Data, Tagger
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

IGNORED = -100


def train(device, data, log):
    """Train on every batch of `data` in turn and return the model.

    Call `log(step, loss=…, accuracy=…, max_grad_norm=…)` after every LOG_EVERY steps, with plain
    numbers over those steps: the mean of the batches' losses, the share of tokens tagged
    correctly, and the largest norm of any parameter's gradient.
    """
    model = Tagger().to(device)
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=0.2, momentum=0.9)
    total_loss, correct, max_grad_norm = (torch.zeros((), device=device) for _ in range(3))
    seen = 0
    dataset = TensorDataset(data.tokens, data.tags, data.lengths)
    loader = DataLoader(dataset, BATCH, num_workers=1, pin_memory=True, persistent_workers=True)
    for step, (tokens, tags, lengths) in enumerate(loader, 1):
        longest = int(lengths.max())  # on the host, where the lengths are known: no reading back
        seen += int(lengths.sum())
        tokens = tokens.to(device, non_blocking=True)[:, :longest]
        tags = tags.to(device, non_blocking=True)[:, :longest]
        lengths = lengths.to(device, non_blocking=True)
        padding = torch.arange(longest, device=device) >= lengths[:, None]
        tags = tags.masked_fill(padding, IGNORED)  # every shape is known without looking at a value

        scores = model(tokens)
        loss = F.cross_entropy(scores.flatten(0, 1), tags.flatten(), ignore_index=IGNORED)
        optimizer.zero_grad()
        loss.backward()
        gradients = [parameter.grad for parameter in parameters]
        grad_norm = torch.stack(torch._foreach_norm(gradients)).max()
        max_grad_norm = torch.maximum(max_grad_norm, grad_norm)
        optimizer.step()

        total_loss += loss.detach()
        correct += (scores.detach().argmax(-1) == tags).sum()
        if step % LOG_EVERY == 0:
            # The only wait of LOG_EVERY steps.
            sums = torch.stack([total_loss, correct, max_grad_norm]).cpu()
            log(
                step,
                loss=sums[:1].numpy() / LOG_EVERY,
                accuracy=sums[1].numpy() / seen,
                max_grad_norm=sums[2],
            )
            total_loss, correct, max_grad_norm = (torch.zeros((), device=device) for _ in range(3))
            seen = 0
    return model


if __name__ == "__main__":
    device = os.environ.get("LAB_DEVICE", "cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    train(torch.device(device), Data(seed=0), lambda step, **numbers: print(step, numbers))
