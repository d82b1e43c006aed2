from __future__ import annotations

import math

import torch

from semifine.engine.facts import entropy, sample_facts, summarise
from semifine.methods.base import PseudoLabels


def example() -> dict[str, torch.Tensor]:
    probs = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.2, 0.7], [0.4, 0.4, 0.2]])
    target = torch.tensor([[0.625, 0.375, 0.0], [0.0, 0.0, 1.0], [0.5, 0.5, 0.0]])
    pseudo = PseudoLabels(probs, target, torch.ones(3), torch.tensor([2, 3, 2]))
    return sample_facts(pseudo, torch.tensor([1, 0, 5]))


def test_facts_follow_their_definitions() -> None:
    facts = example()
    assert facts["prediction"].tolist() == [0, 2, 0]
    assert facts["correct"].tolist() == [False, False, False]
    assert facts["hit"].tolist() == [True, False, False], "an out-of-class image is never hit"
    torch.testing.assert_close(facts["z_obj1"], torch.tensor([0.3, 0.0, 0.0]))
    assert facts["z_obj2"].tolist() == [2, 1, 2]
    torch.testing.assert_close(facts["kept_mass"], torch.tensor([0.8, 0.7, 0.8]))
    torch.testing.assert_close(facts["entropy_after"][1], torch.tensor(0.0))


def test_entropy_is_natural_and_takes_zeros() -> None:
    torch.testing.assert_close(entropy(torch.tensor([0.5, 0.5, 0.0])), torch.tensor(math.log(2)))


def test_summary_uses_in_class_images_only_where_truth_is_needed() -> None:
    means = summarise({name: value.numpy() for name, value in example().items()}, num_classes=3)
    assert means["images"] == 3
    assert means["candidate_hit_rate"] == 50.0
    assert math.isclose(means["candidates"], 5 / 3)


def test_summary_tells_in_class_and_out_of_class_images_apart() -> None:
    means = summarise({name: value.numpy() for name, value in example().items()}, num_classes=3)
    assert (means["in_class"]["images"], means["out_of_class"]["images"]) == (2, 1)
    assert means["in_class"]["candidate_hit_rate"] == 50.0
    assert "candidate_hit_rate" not in means["out_of_class"]
    assert means["out_of_class"]["candidates"] == 2
    assert means["k"] == {"2": 2, "3": 1}
    assert means["within_lemma"] == 1.0


def test_summary_without_any_truth() -> None:
    facts = {name: value.numpy() for name, value in example().items()}
    facts["truth"][:] = -1
    assert "pseudo_label_accuracy" not in summarise(facts, num_classes=3)
