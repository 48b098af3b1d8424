"""Train the tagger; log loss, accuracy and the largest gradient norm every LOG_EVERY steps."""

import os

import torch
from recipe import LOG_EVERY, Data, Tagger
from torch.nn import functional as F


def train(device, data, log):
    """Train on every batch of `data` in turn and return the model.

    Call `log(step, loss=…, accuracy=…, max_grad_norm=…)` after every LOG_EVERY steps, with plain
    numbers over those steps: the mean of the batches' losses, the share of tokens tagged
    correctly, and the largest norm of any parameter's gradient.
    """
    model = Tagger().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    total_loss, correct, seen, max_grad_norm = 0.0, 0, 0, 0.0
    for step, (tokens, tags, lengths) in enumerate(data.batches(), 1):
        tokens, tags, lengths = tokens.to(device), tags.to(device), lengths.to(device)
        longest = lengths.max().item()
        tokens, tags = tokens[:, :longest], tags[:, :longest]
        mask = torch.arange(longest, device=device) < lengths[:, None]

        scores = model(tokens)
        loss = F.cross_entropy(scores[mask], tags[mask])
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            max_grad_norm = max(max_grad_norm, parameter.grad.norm().item())
        optimizer.step()

        total_loss += loss.item()
        correct += (scores[mask].argmax(-1) == tags[mask]).sum().item()
        seen += mask.sum().item()
        if step % LOG_EVERY == 0:
            log(
                step,
                loss=total_loss / LOG_EVERY,
                accuracy=correct / seen,
                max_grad_norm=max_grad_norm,
            )
            total_loss, correct, seen, max_grad_norm = 0.0, 0, 0, 0.0
    return model


if __name__ == "__main__":
    device = os.environ.get("LAB_DEVICE", "cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    train(torch.device(device), Data(seed=0), lambda step, **numbers: print(step, numbers))
