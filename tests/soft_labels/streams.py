"""Random inputs for the tests of the soft labels."""

import torch


def random_counts(num_classes, largest, generator, density=1.0):
    """(K, K) int32 transition counts with zero diagonal."""
    counts = torch.randint(0, largest + 1, (num_classes, num_classes), generator=generator, dtype=torch.int32)
    counts *= torch.rand((num_classes, num_classes), generator=generator) < density
    return counts.fill_diagonal_(0)


def random_medoids(sizes, num_classes, generator):
    """(rows, max(sizes)) distinct classes, padded with -1."""
    medoids = torch.full((len(sizes), max(sizes)), -1)
    for row, k in enumerate(sizes):
        medoids[row, :k] = torch.randperm(num_classes, generator=generator)[:k]
    return medoids


def random_stream(steps, batch_size, num_samples, num_classes, generator):
    """(probs, index) batches with repeated indices; predictions hop among a few classes per sample."""
    home = torch.randint(0, num_classes, (num_samples,), generator=generator)
    batches = []
    for _ in range(steps):
        index = torch.randint(0, num_samples, (batch_size,), generator=generator)
        hop = torch.randint(0, 3, (batch_size,), generator=generator)
        prediction = (home[index] + hop) % num_classes
        logits = torch.randn((batch_size, num_classes), generator=generator)
        logits[torch.arange(batch_size), prediction] += 6 * torch.rand(batch_size, generator=generator)
        batches.append((logits.softmax(dim=1), index))
    return batches


def planted_counts(num_families, family_size, generator, stray=0):
    """(K, K) counts with many transitions inside families of consecutive classes, and up to ``stray`` outside."""
    num_classes = num_families * family_size
    family = torch.arange(num_classes) // family_size
    inside = family[:, None] == family[None, :]
    strong = torch.randint(20, 60, inside.shape, generator=generator)
    weak = torch.randint(0, stray + 1, inside.shape, generator=generator)
    return torch.where(inside, strong, weak).fill_diagonal_(0).int()
