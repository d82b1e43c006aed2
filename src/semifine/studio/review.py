"""Agreement of annotators: Krippendorff's alpha and Cohen's kappa, from the verdicts in the label log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from semifine.data.label_log import UNDO, UNSURE, Event

Ratings = Mapping[str, Mapping[str, str]]
"""For each image the category that each person chose."""


def ratings_of(events: Iterable[Event]) -> dict[str, dict[str, str]]:
    """Returns the last own verdict of each person on each image, also if another person replaced it.

    The category is the class of a label, or the kind of another verdict. Undone verdicts do not count, and an unsure
    answer withdraws the person's verdict.

    Example:
        >>> ratings_of([Event("Ada", "1.jpg", "label", "robin"), Event("Bo", "1.jpg", "label", "wren", seen=1)])
        {'1.jpg': {'Ada': 'robin', 'Bo': 'wren'}}
    """
    events = list(events)
    undone = {event.undoes for event in events if event.kind == UNDO}
    ratings: dict[str, dict[str, str]] = {}
    for event in events:
        if event.number in undone:
            continue
        if event.is_verdict:
            ratings.setdefault(event.path, {})[event.person] = event.class_name or event.kind
        elif event.kind == UNSURE:
            ratings.get(event.path, {}).pop(event.person, None)
    return {path: of_image for path, of_image in ratings.items() if of_image}


def krippendorff_alpha(units: Iterable[Collection[str]]) -> float | None:
    """Computes Krippendorff's alpha for nominal categories.

    Alpha is 1 minus the observed disagreement divided by the disagreement expected by chance. It is 1 if all ratings
    agree, and about 0 if they agree as often as by chance.

    Args:
        units: The ratings of each image by any number of people. Images with fewer than two ratings do not count.

    Returns:
        Alpha; None if it is undefined, because no image has two ratings or all ratings are equal.

    Example:
        >>> krippendorff_alpha([["robin", "robin"], ["wren", "wren"], ["robin", "wren"], ["wren", "wren"]])
        0.5333333333333333
    """
    total: Counter[str] = Counter()
    disagreement = 0.0
    for ratings in units:
        if (number := len(ratings)) < 2:
            continue
        counts = Counter(ratings)
        total.update(counts)
        # Pairs of different ratings within an image, each with the weight 1 / (number - 1).
        disagreement += (number**2 - sum(count**2 for count in counts.values())) / (number - 1)
    ratings_in_total = sum(total.values())
    different_pairs = ratings_in_total**2 - sum(count**2 for count in total.values())
    if not different_pairs:
        return None
    return 1 - (ratings_in_total - 1) * disagreement / different_pairs


def cohen_kappa(pairs: Sequence[tuple[str, str]]) -> float | None:
    """Computes Cohen's kappa of two people.

    Args:
        pairs: The categories that the first and the second person chose for each image.

    Returns:
        Kappa; None if it is undefined, because there are no images or both people always chose the same category.

    Example:
        >>> cohen_kappa([("robin", "robin"), ("wren", "wren"), ("robin", "wren"), ("wren", "wren")])
        0.5
    """
    if not pairs:
        return None
    first, second = (Counter(side) for side in zip(*pairs, strict=True))
    observed = sum(a == b for a, b in pairs) / len(pairs)
    expected = sum(count * second[category] for category, count in first.items()) / len(pairs) ** 2
    return None if expected == 1 else (observed - expected) / (1 - expected)


@dataclass(frozen=True)
class PairAgreement:
    """Agreement of two people on the images that both rated.

    Args:
        first: Name of a person.
        second: Name of another person.
        kappa: Cohen's kappa; None if it is undefined.
        images: Number of images that both rated.
    """

    first: str
    second: str
    kappa: float | None
    images: int


@dataclass(frozen=True)
class Agreement:
    """Agreement of all people.

    Args:
        alpha: Krippendorff's alpha; None if it is undefined.
        images: Number of images with ratings of two or more people.
        people: Number of people who rated at least one of these images.
        pairs: Agreement of each pair of people with common images, those with the most images first.
    """

    alpha: float | None
    images: int
    people: int
    pairs: tuple[PairAgreement, ...]


def measure_agreement(ratings: Ratings) -> Agreement:
    """Computes the agreement on all images.

    Example:
        >>> measure_agreement({"1.jpg": {"Ada": "robin", "Bo": "robin"}, "2.jpg": {"Ada": "wren", "Bo": "robin"}}).alpha
        0.0
    """
    common = [of_image for of_image in ratings.values() if len(of_image) > 1]
    pairs: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for of_image in common:
        for first, second in combinations(sorted(of_image), 2):
            pairs.setdefault((first, second), []).append((of_image[first], of_image[second]))
    by_images = sorted(pairs.items(), key=lambda item: (-len(item[1]), item[0]))
    return Agreement(
        krippendorff_alpha([list(of_image.values()) for of_image in common]),
        len(common),
        len({person for of_image in common for person in of_image}),
        tuple(PairAgreement(first, second, cohen_kappa(both), len(both)) for (first, second), both in by_images),
    )
