"""Published settings, and how profile and budget change them."""

from __future__ import annotations

import pytest

from semifine.config import resolve
from semifine.errors import UserError
from semifine.experiments.recipes import (
    BUDGETS,
    INITS,
    Conditions,
    budget_factor,
    compose,
    default_profile,
    profile_names,
    recipe_names,
)

PAPER = Conditions("synthetic", "scratch")
EXPERTS = Conditions("synthetic", "imagenet")

# METHODS of the SoC paper and of Su et al.: iterations, labelled batch, learning rate, weight decay
PUBLISHED = {
    ("supervised", "scratch"): (50_000, 64, 0.03, 3e-3),
    ("supervised", "imagenet"): (15_000, 64, 0.001, 1e-4),
    ("pseudo_label", "scratch"): (100_000, 30, 0.03, 1e-4),
    ("pseudo_label", "imagenet"): (10_000, 30, 0.001, 1e-4),
    ("curriculum", "scratch"): (50_000, 64, 0.03, 3e-3),
    ("curriculum", "imagenet"): (10_000, 64, 0.001, 1e-4),
    ("self_training", "scratch"): (50_000, 32, 0.03, 1e-3),
    ("self_training", "imagenet"): (10_000, 32, 0.01, 1e-4),
    ("fixmatch", "scratch"): (400_000, 32, 0.01, 5e-4),
    ("fixmatch", "imagenet"): (50_000, 32, 0.001, 5e-4),
    ("flexmatch", "scratch"): (400_000, 32, 0.03, 3e-4),
    ("flexmatch", "imagenet"): (50_000, 32, 0.003, 3e-4),
    ("soc", "scratch"): (400_000, 32, 0.01, 5e-4),
    ("soc", "imagenet"): (50_000, 32, 0.001, 5e-4),
}


@pytest.mark.parametrize(("recipe", "init"), PUBLISHED)
def test_the_paper_profile_has_the_published_numbers(recipe: str, init: str) -> None:
    settings = compose(recipe, Conditions("synthetic", init))
    keys = ("iterations", "batch_size", "lr", "weight_decay")
    assert tuple(settings[key] for key in keys) == PUBLISHED[recipe, init]
    assert settings["backbone"] == "resnet50"
    assert settings["image_size"] == 224


def test_soc_after_moco_takes_half_the_steps_from_scratch() -> None:
    assert compose("soc", PAPER, after_moco=True)["iterations"] == 200_000
    assert compose("soc", EXPERTS, after_moco=True)["iterations"] == 50_000
    assert compose("supervised", PAPER, after_moco=True)["iterations"] == 10_000


@pytest.mark.parametrize("profile", profile_names())
@pytest.mark.parametrize("init", INITS)
@pytest.mark.parametrize("recipe", recipe_names())
@pytest.mark.parametrize("unlabelled", ["in", "inout"])
def test_every_composition_is_a_valid_run(recipe: str, init: str, profile: str, unlabelled: str) -> None:
    conditions = Conditions("synthetic", init, unlabelled, seed=2, profile=profile, budget="tiny")
    resolved = resolve([compose(recipe, conditions)])
    assert resolved.train.seed == 2
    assert resolved.data_settings.unlabelled == unlabelled


def test_a_budget_scales_all_steps_alike() -> None:
    full, small = PAPER, Conditions("synthetic", "scratch", budget="4000")
    assert budget_factor(small) == pytest.approx(0.01)
    for recipe in recipe_names():
        whole, part = compose(recipe, full), compose(recipe, small)
        assert part["iterations"] == pytest.approx(whole["iterations"] * 0.01, abs=1)
        if "horizon" in whole:
            assert part["horizon"] == pytest.approx(whole["horizon"] * 0.01, abs=1)


def test_small_profiles_give_methods_with_two_views_equal_steps() -> None:
    conditions = Conditions("synthetic", "imagenet", profile="lite0", budget="3000")
    steps = {compose(name, conditions)["iterations"] for name in ("fixmatch", "flexmatch", "simmatch", "soc")}
    assert steps == {3000}
    assert compose("soc", conditions)["lr"] == pytest.approx(0.01)


@pytest.mark.parametrize("budget", ["huge", "0", "-5", "1.5"])
def test_a_wrong_budget_is_named(budget: str) -> None:
    with pytest.raises(UserError, match="budget must be one of full, small, tiny"):
        compose("soc", Conditions("synthetic", budget=budget))


def test_the_named_budgets_are_taken() -> None:
    assert [budget_factor(Conditions("synthetic", budget=name)) for name in BUDGETS] == [1.0, 3000 / 4e5, 400 / 4e5]


def test_the_published_data_sets_get_the_published_network() -> None:
    assert default_profile("semi_aves:/data") == "paper"
    assert default_profile("semi_cub:/data") == "lite0"
    assert default_profile("synthetic") == "small"
