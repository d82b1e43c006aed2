"""Random inputs for tests of soft labels."""

import torch


def random_counts(num_classes, largest, generator, density=1.0):
    """Returns (K, K) int32 transition counts with zero diagonal."""
    counts = torch.randint(0, largest + 1, (num_classes, num_classes), generator=generator, dtype=torch.int32)
    counts *= torch.rand((num_classes, num_classes), generator=generator) < density
    return counts.fill_diagonal_(0)


def random_medoids(sizes, num_classes, generator):
    """Returns (rows, max(sizes)) distinct classes, padded with -1."""
    medoids = torch.full((len(sizes), max(sizes)), -1)
    for row, k in enumerate(sizes):
        medoids[row, :k] = torch.randperm(num_classes, generator=generator)[:k]
    return medoids


def random_stream(steps, batch_size, num_samples, num_classes, generator):
    """Returns (probs, index) batches with repeated indices; the prediction of a sample varies among three classes."""
    first_class = torch.randint(0, num_classes, (num_samples,), generator=generator)
    batches = []
    for _ in range(steps):
        index = torch.randint(0, num_samples, (batch_size,), generator=generator)
        offset = torch.randint(0, 3, (batch_size,), generator=generator)
        prediction = (first_class[index] + offset) % num_classes
        logits = torch.randn((batch_size, num_classes), generator=generator)
        logits[torch.arange(batch_size), prediction] += 6 * torch.rand(batch_size, generator=generator)
        batches.append((logits.softmax(dim=1), index))
    return batches


def block_counts(num_blocks, block_size, generator, noise=0):
    """Returns (K, K) counts with many transitions in blocks of consecutive classes, and up to ``noise`` elsewhere."""
    num_classes = num_blocks * block_size
    block = torch.arange(num_classes) // block_size
    inside = block[:, None] == block[None, :]
    many = torch.randint(20, 60, inside.shape, generator=generator)
    few = torch.randint(0, noise + 1, inside.shape, generator=generator)
    return torch.where(inside, many, few).fill_diagonal_(0).int()
