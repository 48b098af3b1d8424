"""Train the tagger; log loss, accuracy and the largest gradient norm every LOG_EVERY steps."""

import os

import torch
from recipe import LOG_EVERY, Data, Tagger
from torch.nn import functional as F

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
    record = torch.zeros(LOG_EVERY, 3, device=device)
    seen = 0
    for step, (tokens, tags, lengths) in enumerate(data.batches(pin_memory=True), 1):
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
        optimizer.step()

        row = record[step % LOG_EVERY]
        row[0] = loss.detach()
        row[1] = (scores.detach().argmax(-1) == tags).sum()
        row[2] = torch.stack(torch._foreach_norm(gradients)).max()
        if step % LOG_EVERY == 0:
            rows = record.cpu()
            log(
                step,
                loss=rows[:, 0].mean().item(),
                accuracy=rows[:, 1].sum().item() / seen,
                max_grad_norm=rows[:, 2].max().item(),
            )
            seen = 0
    return model


if __name__ == "__main__":
    device = os.environ.get("LAB_DEVICE", "cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    train(torch.device(device), Data(seed=0), lambda step, **numbers: print(step, numbers))
